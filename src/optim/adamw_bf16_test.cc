#include "optim/adamw_bf16.h"

#include <bit>

#include "core/dtype.h"
#include "optim/adamw.h"
#include "optim/optim_test_util.h"
#include "optim/rounding.h"

namespace snug {
namespace {

constexpr uint64_t kParameter = 11;
constexpr double kHalfEps = 1.0 / 128.0;  // distance of neighbours in bf16, relative

std::vector<uint16_t> halves(const std::vector<float>& values) {
  std::vector<uint16_t> result;
  for (float value : values) result.push_back(float_to_bfloat16(value));
  return result;
}
std::vector<float> floats(std::span<const uint16_t> values) {
  std::vector<float> result;
  for (uint16_t value : values) result.push_back(bfloat16_to_float(value));
  return result;
}

struct Halves {
  std::vector<uint16_t> w;
  std::vector<std::byte> state;

  explicit Halves(const std::vector<float>& weights)
      : w(halves(weights)), state(half_moment_layout(int64_t(weights.size())).bytes) {}
  std::span<uint16_t> m() { return {reinterpret_cast<uint16_t*>(state.data()), w.size()}; }
  std::span<uint16_t> v() {
    return {
        reinterpret_cast<uint16_t*>(state.data() + half_moment_layout(int64_t(w.size())).second),
        w.size()};
  }
  void step(const std::vector<float>& g, const OptimizerStep& s) {
    adamw_bf16(w, g, state.data(), s, kParameter);
  }
};

// Every element is the fp32 update rounded with its own draw of rounding.h.
TEST(AdamWBf16, IsAdamWRoundedByItsDraws) {
  for (size_t n : {1, 7, 255, 256, 257, 5000}) {
    Halves p(normals(n, 1));
    for (int64_t step = 1; step <= 3; ++step) {
      const std::vector<float> g = normals(n, uint64_t(step) + 10);
      const OptimizerStep s = {.learning_rate = 1e-3,
                               .weight_decay = 0.1,
                               .step = step,
                               .seed = 99,
                               .gradient_scale = 0.7};
      std::vector<float> w = floats(p.w), m = floats(p.m()), v = floats(p.v());
      // Through the same vectors, so that the same products are fused.
      adamw(w, g, m, v, s);
      p.step(g, s);
      const RoundingDraws draws = rounding_draws(s.seed, step, kParameter);
      size_t different = 0;
      const auto check = [&](std::span<const uint16_t> got, const std::vector<float>& exact,
                             RoundedArray array) {
        for (size_t i = 0; i < n; ++i) {
          const uint16_t expected =
              round_to_bfloat16(std::bit_cast<uint32_t>(exact[i]), rounding_draw(draws, array, i));
          different += got[i] != expected;
          ASSERT_NEAR(bfloat16_to_float(got[i]), exact[i], kHalfEps * std::abs(exact[i]))
              << i << " of " << n;
        }
      };
      check(p.w, w, RoundedArray::kWeights);
      check(p.m(), m, RoundedArray::kFirstMoments);
      check(p.v(), v, RoundedArray::kSecondMoments);
      // An element at the end of a row may round its last bit otherwise.
      EXPECT_LE(different, n / 200) << n;
    }
  }
}

TEST(StochasticRounding, IsUnbiased) {
  constexpr int kRuns = 65536;
  for (const float x : {1.001f, -1.001f, 3.14159f, -2.7e-5f, 1.0f}) {
    double mean = 0.0;
    for (int run = 0; run < kRuns; ++run) {
      const RoundingDraws draws = rounding_draws(7, run, 0);
      mean += bfloat16_to_float(round_to_bfloat16(std::bit_cast<uint32_t>(x),
                                                  rounding_draw(draws, RoundedArray::kWeights, 5)));
    }
    // Four deviations of a mean of coins that are at most a distance apart.
    EXPECT_NEAR(mean / kRuns, x, 4.0 * 0.5 * kHalfEps * std::abs(x) / std::sqrt(kRuns)) << x;
  }
}

TEST(StochasticRounding, KeepsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (uint32_t draw : {0u, 65535u}) {
    EXPECT_EQ(bfloat16_to_float(round_to_bfloat16(std::bit_cast<uint32_t>(infinity), draw)),
              infinity);
    EXPECT_EQ(bfloat16_to_float(round_to_bfloat16(std::bit_cast<uint32_t>(-infinity), draw)),
              -infinity);
    EXPECT_TRUE(
        std::isnan(bfloat16_to_float(round_to_bfloat16(std::bit_cast<uint32_t>(nan), draw))));
    EXPECT_TRUE(std::isnan(bfloat16_to_float(round_to_bfloat16(0x7f800001u, draw))));
  }
}

// Steps, parameters, arrays and elements draw for themselves.
TEST(StochasticRounding, DrawsDiffer) {
  const auto first = [](uint64_t seed, int64_t step, uint64_t parameter, RoundedArray array) {
    std::vector<uint32_t> draws;
    for (uint64_t i = 0; i < 16; ++i) {
      draws.push_back(rounding_draw(rounding_draws(seed, step, parameter), array, i));
    }
    return draws;
  };
  const auto base = first(1, 1, 1, RoundedArray::kWeights);
  EXPECT_EQ(base, first(1, 1, 1, RoundedArray::kWeights));
  EXPECT_NE(base, first(2, 1, 1, RoundedArray::kWeights));
  EXPECT_NE(base, first(1, 2, 1, RoundedArray::kWeights));
  EXPECT_NE(base, first(1, 1, 2, RoundedArray::kWeights));
  EXPECT_NE(base, first(1, 1, 1, RoundedArray::kFirstMoments));
}

// Updates of a thousandth of the distance of two numbers, which rounding to nearest would lose, add
// up.
TEST(AdamWBf16, SmallUpdatesAddUp) {
  constexpr size_t kSize = 4096;
  constexpr int kSteps = 500;
  Halves p(std::vector<float>(kSize, 1.0f));
  for (int64_t step = 1; step <= kSteps; ++step) {
    p.step(std::vector<float>(kSize, 1.0f), {.learning_rate = 1e-5, .step = step});
  }
  double mean = 0.0;
  for (float w : floats(p.w)) mean += double(w) / kSize;
  // Noise of the moments, which are rounded too, is a few per cent of the step.
  EXPECT_NEAR(1.0 - mean, 1e-5 * kSteps, 0.1e-5 * kSteps);
}

TEST(AdamWBf16, DoesNotDependOnThreads) {
  const auto run = [] {
    Halves p(normals(100003, 1));
    for (int64_t step = 1; step <= 3; ++step) {
      p.step(normals(100003, 2), {.learning_rate = 0.1, .step = step});
    }
    return std::pair(p.w, p.state);
  };
  EXPECT_EQ(with_threads(1, run), with_threads(3, run));
}

TEST(AdamWBf16, LearnsWhatAdamWLearns) {
  const Regression problem;
  const size_t size = Regression::kClasses * Regression::kInputs;
  std::vector<float> m(size), v(size);
  const double exact = problem.train(
      150, 0.03, [&](auto& w, const auto& g, const OptimizerStep& s) { adamw(w, g, m, v, s); });
  Halves p{std::vector<float>(size)};
  const double rounded =
      problem.train(150, 0.03, [&](auto& w, const auto& g, const OptimizerStep& s) {
        p.step(g, s);
        w = floats(p.w);
      });
  EXPECT_NEAR(rounded, exact, 0.03 * exact);
}

}  // namespace
}  // namespace snug
