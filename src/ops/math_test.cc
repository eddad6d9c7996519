#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/math_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/math-inl.h"

#ifndef SNUG_OPS_MATH_TEST_FUNCTIONS_
#define SNUG_OPS_MATH_TEST_FUNCTIONS_
namespace snug {
enum class MathFunction { kExp, kTanh, kSigmoid, kNormalCdf };
}
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

HWY_INLINE FloatVector evaluate(MathFunction f, FloatVector x) {
  switch (f) {
    case MathFunction::kExp:
      return vector_exp(x);
    case MathFunction::kTanh:
      return vector_tanh(x);
    case MathFunction::kSigmoid:
      return vector_sigmoid(x).value;
    case MathFunction::kNormalCdf:
      break;
  }
  return vector_normal(x).cdf;
}

void Evaluate(MathFunction f, const float* x, size_t n, float* y) {
  const FloatTag d;
  over_row(n, [&](size_t i, auto access)
                  HWY_ATTR { access.store(evaluate(f, access.load(d, x + i)), d, y + i); });
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/op_test_util.h"

namespace snug {
namespace {

HWY_EXPORT(Evaluate);

std::vector<float> sweep(double from, double to, size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = float(from + (to - from) * double(i) / double(n - 1));
  return x;
}

// Largest error over the sweep, each relative to max(|expected|, floor), in units of eps.
double worst_error(MathFunction f, const std::vector<float>& x, double (*exact)(double),
                   double floor) {
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(Evaluate)(f, x.data(), x.size(), y.data());
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = exact(x[i]);
    const double error = std::abs(y[i] - expected) / std::max(std::abs(expected), floor);
    worst = std::max(worst, std::isnan(error) ? 1e300 : error);
  }
  return worst / kEps;
}

TEST(VectorMath, IsAccurateToFewUnitsInTheLastPlace) {
  on_each_target([] {
    constexpr size_t kPoints = 300007;
    const double smallest = std::numeric_limits<float>::min();
    const auto exp = [](double x) { return std::exp(x); };
    EXPECT_LT(worst_error(MathFunction::kExp, sweep(-87.3, 88.3, kPoints), exp, smallest), 1.5);
    EXPECT_LT(worst_error(MathFunction::kExp, sweep(-1e-3, 1e-3, kPoints), exp, smallest), 1.5);
    const auto tanh = [](double x) { return std::tanh(x); };
    EXPECT_LT(worst_error(MathFunction::kTanh, sweep(-12.0, 12.0, kPoints), tanh, smallest), 3.0);
    const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
    EXPECT_LT(worst_error(MathFunction::kSigmoid, sweep(-80.0, 80.0, kPoints), sigmoid, smallest),
              3.0);
    // Absolutely everywhere, and relatively in the tail as far as rounding x^2 / 2 allows: 8^2 / 2
    // * eps / 2.
    const auto cdf = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
    EXPECT_LT(worst_error(MathFunction::kNormalCdf, sweep(-13.0, 13.0, kPoints), cdf, 1.0), 2.5);
    EXPECT_LT(worst_error(MathFunction::kNormalCdf, sweep(-8.0, 0.0, kPoints), cdf, smallest),
              20.0);
  });
}

TEST(VectorMath, HandlesTheEndsOfTheRange) {
  on_each_target([] {
    const float inf = std::numeric_limits<float>::infinity();
    const std::vector<float> x = {-inf, -1e30f, -100.0f, -88.0f, 0.0f, 89.0f, 1e30f, inf, NAN};
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(Evaluate)(MathFunction::kExp, x.data(), x.size(), y.data());
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(y[i], 0.0f) << x[i];
    EXPECT_EQ(y[4], 1.0f);
    for (size_t i = 5; i < 8; ++i) EXPECT_EQ(y[i], inf) << x[i];
    EXPECT_TRUE(std::isnan(y[8]));
    HWY_DYNAMIC_DISPATCH(Evaluate)(MathFunction::kTanh, x.data(), x.size(), y.data());
    EXPECT_EQ(y[0], -1.0f);
    EXPECT_EQ(y[7], 1.0f);
    EXPECT_TRUE(std::isnan(y[8]));
    HWY_DYNAMIC_DISPATCH(Evaluate)(MathFunction::kNormalCdf, x.data(), x.size(), y.data());
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_NEAR(y[4], 0.5, kEps);
    EXPECT_EQ(y[5], 1.0f);
    EXPECT_TRUE(std::isnan(y[8]));
  });
}

}  // namespace
}  // namespace snug
#endif  // HWY_ONCE
