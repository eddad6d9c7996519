#include "optim/adamw_8bit.h"

#include "optim/adamw.h"
#include "optim/dynamic_tree.h"
#include "optim/optim_test_util.h"

namespace snug {
namespace {

// A parameter with its state, and the state in plain numbers.
struct EightBit {
  std::vector<float> w;
  std::vector<std::byte> state;

  explicit EightBit(std::vector<float> weights)
      : w(std::move(weights)), state(eight_bit_layout(int64_t(w.size())).bytes) {}

  EightBitLayout layout() const { return eight_bit_layout(int64_t(w.size())); }
  float scale(size_t offset, size_t i) const {
    return reinterpret_cast<const float*>(state.data() + offset)[i / 256];
  }
  float first(size_t i) const {
    const auto code = uint8_t(state[i]);
    return (code & 128 ? -1.0f : 1.0f) * kMagnitudes[code & 127] * scale(layout().first_scales, i);
  }
  float root(size_t i) const {
    return kPositives[uint8_t(state[layout().second + i])] * scale(layout().second_scales, i);
  }
  std::vector<float> firsts() const {
    std::vector<float> all(w.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = first(i);
    return all;
  }
  std::vector<float> roots() const {
    std::vector<float> all(w.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = root(i);
    return all;
  }
  void step(const std::vector<float>& g, const OptimizerStep& s) {
    adamw_8bit(w, g, state.data(), s, 3);
  }
};

// The distance of the two codes around x in [0, 1), with what rounding x itself may add.
double gap(std::span<const float> values, double x) {
  const auto above = std::upper_bound(values.begin() + 1, values.end() - 1, float(x));
  return double(*above) - double(*(above - 1)) + 1e-6 * x;
}

TEST(DynamicTree, IsMonotoneAndCoversDecades) {
  for (size_t i = 1; i < kMagnitudes.size(); ++i) EXPECT_LT(kMagnitudes[i - 1], kMagnitudes[i]);
  for (size_t i = 1; i < kPositives.size(); ++i) EXPECT_LT(kPositives[i - 1], kPositives[i]);
  EXPECT_EQ(kMagnitudes[0], 0.0f);
  EXPECT_EQ(kPositives[0], 0.0f);
  EXPECT_FLOAT_EQ(kMagnitudes[127], 1.0f - 0.9f / 128.0f);  // half a part below one
  EXPECT_FLOAT_EQ(kMagnitudes[64], 0.1f + 0.9f / 128.0f);
  EXPECT_FLOAT_EQ(kMagnitudes[1], 0.55e-6f);
  EXPECT_FLOAT_EQ(kPositives[1], 0.55e-7f);
  EXPECT_FLOAT_EQ(kPositives[255], 1.0f - 0.9f / 256.0f);
}

// Moments of one step against those of fp32, within the distance of codes; weights are equal but
// for rounding, since what is stored matters only in the next step.
TEST(AdamW8Bit, IsAdamWButForTheStoredMoments) {
  for (size_t n : {1, 255, 256, 257, 5000, 16384}) {
    EightBit p(normals(n, 1));
    for (int64_t step = 1; step <= 4; ++step) {
      std::vector<float> g = normals(n, uint64_t(step) + 10);
      for (size_t i = 0; i < n; ++i) g[i] *= std::pow(10.0f, -float(i % 9));  // over nine decades
      const OptimizerStep s = {.learning_rate = 1e-2,
                               .weight_decay = 0.1,
                               .step = step,
                               .seed = 5,
                               .gradient_scale = 0.7};
      std::vector<float> w = p.w, m = p.firsts(), root = p.roots(), v(n);
      for (size_t i = 0; i < n; ++i) v[i] = root[i] * root[i];
      adamw(w, g, m, v, s);
      p.step(g, s);
      for (size_t begin = 0; begin < n; begin += 256) {
        const size_t end = std::min(n, begin + 256);
        double m_largest = 0.0, v_largest = 0.0;
        for (size_t i = begin; i < end; ++i) {
          m_largest = std::max(m_largest, double(std::abs(m[i])));
          v_largest = std::max(v_largest, std::sqrt(double(v[i])));
        }
        for (size_t i = begin; i < end; ++i) {
          ASSERT_NEAR(p.w[i], w[i], 2.0 * kEps * (std::abs(w[i]) + 1.0)) << i << " of " << n;
          const double m_error = gap(kMagnitudes, std::abs(m[i]) / m_largest) * m_largest;
          ASSERT_NEAR(p.first(i), m[i], 0.51 * m_error) << i << " of " << n;
          const double v_error = gap(kPositives, std::sqrt(double(v[i])) / v_largest) * v_largest;
          ASSERT_NEAR(p.root(i), std::sqrt(v[i]), 1.01 * v_error) << i << " of " << n;
          // Nothing is divided by zero that was not before.
          ASSERT_EQ(p.root(i) > 0.0f, v[i] > 0.0f) << i << " of " << n;
        }
      }
    }
  }
}

TEST(AdamW8Bit, TheLargestOfABlockIsExact) {
  EightBit p(std::vector<float>(256));
  const std::vector<float> g = normals(256, 1);
  p.step(g, {});
  const size_t largest =
      size_t(std::max_element(g.begin(), g.end(),
                              [](float a, float b) { return std::abs(a) < std::abs(b); }) -
             g.begin());
  EXPECT_NEAR(p.first(largest), 0.1 * g[largest], 1e-6 * std::abs(g[largest]));
  EXPECT_NEAR(p.root(largest), std::sqrt(0.001) * std::abs(g[largest]),
              1e-4 * std::abs(g[largest]));
}

TEST(AdamW8Bit, ZeroGradientsStayZero) {
  EightBit p(normals(300, 1));
  const std::vector<float> before = p.w;
  for (int64_t step = 1; step <= 3; ++step) p.step(std::vector<float>(300), {.step = step});
  EXPECT_EQ(p.w, before);
  EXPECT_EQ(p.firsts(), std::vector<float>(300));
  EXPECT_EQ(p.roots(), std::vector<float>(300));
}

// The mean over many draws is the number itself: to four deviations of a mean of so many, each off
// by less than a gap.
TEST(AdamW8Bit, RoundsSecondMomentsWithoutBias) {
  constexpr int kRuns = 4000;
  const std::vector<float> g = normals(64, 1);
  std::vector<double> mean(64);
  for (int run = 0; run < kRuns; ++run) {
    EightBit p(std::vector<float>(64));
    p.step(g, {.seed = uint64_t(run)});
    for (size_t i = 0; i < 64; ++i) mean[i] += double(p.root(i)) / kRuns;
  }
  double largest = 0.0;
  for (float x : g) largest = std::max(largest, std::sqrt(0.001) * std::abs(x));
  for (size_t i = 0; i < 64; ++i) {
    const double expected = std::sqrt(0.001) * std::abs(g[i]);
    EXPECT_NEAR(mean[i], expected,
                4.0 * 0.5 * gap(kPositives, expected / largest) * largest / std::sqrt(kRuns) +
                    1e-5 * largest)
        << i;
  }
}

// A moving average of a thousand steps changes by less than the distance of two codes a step, and
// moves all the same: after gradients of one, many steps of gradients of a tenth.
TEST(AdamW8Bit, SlowAveragesMove) {
  constexpr size_t kSize = 4096;
  EightBit p{std::vector<float>(kSize)};
  double v = 0.0, mean = 0.0;
  for (int64_t step = 1; step <= 3000; ++step) {
    const float size = step <= 1000 ? 1.0f : 0.1f;
    std::vector<float> g(kSize, size);
    for (size_t i = 0; i < kSize; i += 256) g[i] = 3.0f;  // the block's largest stays where it is
    p.step(g, {.learning_rate = 0.0, .step = step});
    v = 0.999 * v + 0.001 * double(size) * double(size);
  }
  for (size_t i = 0; i < kSize; ++i) {
    mean += i % 256 == 0 ? 0.0 : double(p.root(i)) / double(kSize - kSize / 256);
  }
  EXPECT_NEAR(mean, std::sqrt(v), 0.05 * std::sqrt(v));
}

TEST(AdamW8Bit, DoesNotDependOnThreads) {
  const auto run = [] {
    EightBit p(normals(100003, 1));
    for (int64_t step = 1; step <= 3; ++step) {
      p.step(normals(100003, 2), {.learning_rate = 0.1, .step = step});
    }
    return std::pair(p.w, p.state);
  };
  EXPECT_EQ(with_threads(1, run), with_threads(3, run));
}

TEST(AdamW8Bit, LearnsWhatAdamWLearns) {
  const Regression problem;
  const size_t size = Regression::kClasses * Regression::kInputs;
  std::vector<float> m(size), v(size);
  const double exact = problem.train(
      150, 0.03, [&](auto& w, const auto& g, const OptimizerStep& s) { adamw(w, g, m, v, s); });
  std::vector<std::byte> state(eight_bit_layout(int64_t(size)).bytes);
  const double rounded =
      problem.train(150, 0.03, [&](auto& w, const auto& g, const OptimizerStep& s) {
        adamw_8bit(w, g, state.data(), s, 0);
      });
  EXPECT_LT(exact, 1.0);  // from log(80)
  EXPECT_NEAR(rounded, exact, 0.05 * exact);
}

}  // namespace
}  // namespace snug
