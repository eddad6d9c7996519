#include "optim/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adamw.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstddef>

#ifndef SNUG_OPTIM_ADAMW_ARGUMENTS_
#define SNUG_OPTIM_ADAMW_ARGUMENTS_
namespace snug {

struct AdamWArrays {
  float* w;
  const float* g;
  float *m, *v;
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE void update(D d, const AdamWArrays& a, size_t i, const AdamWFactors& f) {
  const auto g = hn::Mul(hn::LoadU(d, a.g + i), hn::Set(d, f.gradient));
  auto m = hn::LoadU(d, a.m + i), v = hn::LoadU(d, a.v + i);
  m = hn::MulAdd(hn::Sub(g, m), hn::Set(d, f.new_m), m);
  v = hn::MulAdd(hn::Mul(g, hn::Set(d, f.new_v)), g, hn::Mul(v, hn::Set(d, f.old_v)));
  const auto size = hn::MulAdd(hn::Sqrt(v), hn::Set(d, f.v_correction), hn::Set(d, f.epsilon));
  const auto w = hn::Mul(hn::LoadU(d, a.w + i), hn::Set(d, f.keep));
  hn::StoreU(m, d, a.m + i);
  hn::StoreU(v, d, a.v + i);
  hn::StoreU(hn::NegMulAdd(hn::Set(d, f.step_size), hn::Div(m, size), w), d, a.w + i);
}

void UpdateRange(const AdamWArrays& arrays, size_t begin, size_t end, const AdamWFactors& factors) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  size_t i = begin;
  for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) update(d, arrays, i, factors);
  for (; i < end; ++i) update(one, arrays, i, factors);
}

double SquaresOfRange(const float* values, size_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto v0 = hn::PromoteTo(d, hn::LoadU(df, values + i));
    const auto v1 = hn::PromoteTo(d, hn::LoadU(df, values + i + lanes));
    const auto v2 = hn::PromoteTo(d, hn::LoadU(df, values + i + 2 * lanes));
    const auto v3 = hn::PromoteTo(d, hn::LoadU(df, values + i + 3 * lanes));
    sum0 = hn::MulAdd(v0, v0, sum0);
    sum1 = hn::MulAdd(v1, v1, sum1);
    sum2 = hn::MulAdd(v2, v2, sum2);
    sum3 = hn::MulAdd(v3, v3, sum3);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < n; ++i) sum += double(values[i]) * values[i];
  return sum;
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace snug {

HWY_EXPORT(UpdateRange);
HWY_EXPORT(SquaresOfRange);

AdamWFactors adamw_factors(const AdamWStep& step) {
  const double correction1 = 1.0 - std::pow(step.beta1, double(step.step));
  const double correction2 = 1.0 - std::pow(step.beta2, double(step.step));
  return {
      .gradient = float(step.gradient_scale),
      .keep = float(1.0 - step.learning_rate * step.weight_decay),
      .step_size = float(step.learning_rate / correction1),
      .new_m = float(1.0 - step.beta1),
      .old_v = float(step.beta2),
      .new_v = float(1.0 - step.beta2),
      .v_correction = float(1.0 / std::sqrt(correction2)),
      .epsilon = float(step.epsilon),
  };
}

void adamw(std::span<float> w, std::span<const float> g, std::span<float> m, std::span<float> v,
           const AdamWStep& step) {
  SNUG_CHECK(g.size() == w.size() && m.size() == w.size() && v.size() == w.size() &&
             step.step >= 1);
  const AdamWFactors factors = adamw_factors(step);
  const AdamWArrays arrays = {w.data(), g.data(), m.data(), v.data()};
  // Pieces of whole vectors, so that which elements end in the scalar rest does not depend on the
  // threads either.
  constexpr int64_t kPiece = 16384;
  const int64_t size = int64_t(w.size());
#pragma omp parallel for schedule(static) if (size > kPiece)
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    HWY_DYNAMIC_DISPATCH(UpdateRange)
    (arrays, size_t(begin), size_t(std::min(size, begin + kPiece)), factors);
  }
}

double sum_of_squares(std::span<const float> values) {
  constexpr int64_t kPieces = 256;
  std::array<double, kPieces> sums = {};
  const int64_t size = int64_t(values.size()), piece = (size + kPieces - 1) / kPieces;
#pragma omp parallel for schedule(static) if (size > 65536)
  for (int64_t p = 0; p < kPieces; ++p) {
    const int64_t begin = std::min(size, p * piece), end = std::min(size, begin + piece);
    sums[size_t(p)] =
        HWY_DYNAMIC_DISPATCH(SquaresOfRange)(values.data() + begin, size_t(end - begin));
  }
  double total = 0.0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace snug
#endif  // HWY_ONCE
