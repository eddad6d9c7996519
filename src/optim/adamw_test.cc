#include "optim/adamw.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace snug {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Parameters {
  std::vector<float> w, g, m, v;

  Parameters(size_t n, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; ++i) {
      w.push_back(normal(random));
      g.push_back(0.01f * normal(random));
      m.push_back(0.01f * normal(random));
      v.push_back(std::abs(0.001f * normal(random)));
    }
  }
  void step(const OptimizerStep& s) { adamw(w, g, m, v, s); }
};

// torch.optim.AdamW, one element in fp64.
void reference(double& w, double g, double& m, double& v, const OptimizerStep& s) {
  g *= s.gradient_scale;
  w *= 1.0 - s.learning_rate * s.weight_decay;
  m = s.beta1 * m + (1.0 - s.beta1) * g;
  v = s.beta2 * v + (1.0 - s.beta2) * g * g;
  const double corrected =
      std::sqrt(v) / std::sqrt(1.0 - std::pow(s.beta2, double(s.step))) + s.epsilon;
  w -= s.learning_rate / (1.0 - std::pow(s.beta1, double(s.step))) * m / corrected;
}

TEST(AdamW, MatchesReference) {
  for (size_t n : {1, 3, 7, 8, 9, 31, 16384, 16385, 40009}) {
    for (int64_t step : {1, 2, 1000}) {
      const OptimizerStep s = {
          .learning_rate = 1e-3, .weight_decay = 0.01, .step = step, .gradient_scale = 0.7};
      Parameters p(n, n);
      const Parameters before = p;
      p.step(s);
      for (size_t i = 0; i < n; ++i) {
        double w = before.w[i], m = before.m[i], v = before.v[i];
        reference(w, before.g[i], m, v, s);
        // A handful of roundings each: of the values (|w| < 8, |g|, |m| < 0.1, v < 0.01), and of
        // the step's size, which is relative to lr * m / sqrt(v).
        const double update = std::abs(w - before.w[i]);
        ASSERT_NEAR(p.w[i], w, kEps * (2.0 * std::abs(w) + 8.0 * update)) << i << " of " << n;
        ASSERT_NEAR(p.m[i], m, 4.0 * kEps * 0.1);
        ASSERT_NEAR(p.v[i], v, 4.0 * kEps * v);
      }
    }
  }
}

// lr = 0.1, decay 0.1, w = 1, gradients 0.5 and then -0.25, with the formulas written out.
TEST(AdamW, FollowsTheFirstStepsByHand) {
  std::vector<float> w = {1.0f}, g = {0.5f}, m = {0.0f}, v = {0.0f};
  OptimizerStep s = {.learning_rate = 0.1, .weight_decay = 0.1, .step = 1};
  adamw(w, g, m, v, s);
  EXPECT_NEAR(w[0], 0.99 - 0.1, 1e-6);  // the first step is lr * sign(g) after decay
  g[0] = -0.25f;
  s.step = 2;
  adamw(w, g, m, v, s);
  const double m2 = 0.9 * 0.05 - 0.1 * 0.25, v2 = 0.999 * 0.00025 + 0.001 * 0.0625;
  const double size = std::sqrt(v2 / (1.0 - 0.999 * 0.999));
  EXPECT_NEAR(w[0], 0.89 * 0.99 - 0.1 * m2 / 0.19 / size, 1e-6);
}

TEST(AdamW, DoesNotDependOnThreads) {
  const auto run = [](int threads) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    Parameters p(100003, 5);
    p.step({.learning_rate = 1e-3, .weight_decay = 0.01});
    const double squares = sum_of_squares(p.w);
    omp_set_num_threads(before);
    return std::pair(p.w, squares);
  };
  EXPECT_EQ(run(1), run(2));
}

TEST(AdamW, ShowsNan) {
  Parameters p(20, 1);
  p.g[17] = NAN;
  p.step({});
  EXPECT_TRUE(std::isnan(p.w[17]));
  EXPECT_FALSE(std::isnan(p.w[16]));
}

TEST(SumOfSquares, MatchesReference) {
  for (size_t n : {0, 1, 3, 255, 256, 257, 70001}) {
    const Parameters p(n, n + 1);
    double expected = 0.0;
    for (float w : p.w) expected += double(w) * w;
    EXPECT_NEAR(sum_of_squares(p.w), expected, 1e-12 * expected) << n;  // fp64 throughout
  }
}

TEST(SumOfSquares, NanAndInfinityComeThrough) {
  Parameters p(70001, 1);
  p.w[69999] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(sum_of_squares(p.w)));
  p.w[5] = NAN;
  EXPECT_TRUE(std::isnan(sum_of_squares(p.w)));
}

}  // namespace
}  // namespace snug
