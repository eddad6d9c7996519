#include "optim/sgd.h"

#include "optim/optim_test_util.h"

namespace snug {
namespace {

TEST(Sgd, MatchesReference) {
  for (size_t n : {1, 3, 8, 31, 16385, 40009}) {
    for (const bool has_momentum : {false, true}) {
      const OptimizerStep s = {
          .learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.8, .gradient_scale = 0.7};
      const std::vector<float> w0 = normals(n, 1), g = normals(n, 2),
                               b0 = normals(has_momentum ? n : 0, 3);
      std::vector<float> w = w0, b = b0;
      sgd(w, g, b, s);
      for (size_t i = 0; i < n; ++i) {
        double velocity = double(g[i]) * s.gradient_scale + s.weight_decay * double(w0[i]);
        if (has_momentum) velocity += s.momentum * double(b0[i]);
        // A few roundings of terms below 8 each.
        ASSERT_NEAR(w[i], w0[i] - s.learning_rate * velocity, 16.0 * kEps) << i << " of " << n;
        if (has_momentum) {
          ASSERT_NEAR(b[i], velocity, 32.0 * kEps) << i << " of " << n;
        }
      }
    }
  }
}

// torch.optim.SGD: tests/golden/make_optimizers.py.
TEST(Sgd, MatchesPyTorch) {
  const std::vector<std::vector<float>> expected = {
      {0.87236923f, 0.898281038f, 0.154611737f, -0.746156633f, -0.931474924f},
      {0.834199727f, 0.918859243f, 0.166440204f, -0.720779419f, -0.916277528f}};
  for (const bool has_momentum : {false, true}) {
    std::vector<float> w(5), g(5), b(has_momentum ? 5 : 0);
    for (size_t i = 0; i < 5; ++i) w[i] = float(std::sin(double(i + 1)));
    for (int64_t step = 1; step <= 3; ++step) {
      for (size_t i = 0; i < 5; ++i) {
        g[i] = float(std::cos(double(i + 1) * double(step)) / double(i + 1));
      }
      sgd(w, g, b, {.learning_rate = 0.05, .weight_decay = 0.1, .momentum = 0.9, .step = step});
    }
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(w[i], expected[has_momentum][i], 4.0 * kEps) << i;
  }
}

TEST(Sgd, DoesNotDependOnThreads) {
  const auto run = [] {
    std::vector<float> w = normals(100003, 1), b = normals(100003, 2);
    sgd(w, normals(100003, 3), b, {.learning_rate = 0.1});
    return std::pair(w, b);
  };
  EXPECT_EQ(with_threads(1, run), with_threads(3, run));
}

}  // namespace
}  // namespace snug
