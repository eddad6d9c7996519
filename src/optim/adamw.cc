#include "optim/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adamw.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstddef>

#include "optim/adamw-inl.h"
#include "optim/squares-inl.h"

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

template <class D>
HWY_INLINE void update(D d, const AdamWArrays& a, size_t i, const AdamWFactors& f) {
  auto m = hn::LoadU(d, a.m + i), v = hn::LoadU(d, a.v + i);
  const auto w = adamw_element(d, f, hn::LoadU(d, a.w + i), hn::LoadU(d, a.g + i), m, v);
  hn::StoreU(m, d, a.m + i);
  hn::StoreU(v, d, a.v + i);
  hn::StoreU(w, d, a.w + i);
}

void UpdateRange(const AdamWArrays& arrays, size_t begin, size_t end, const AdamWFactors& factors) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  size_t i = begin;
  for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) update(d, arrays, i, factors);
  for (; i < end; ++i) update(one, arrays, i, factors);
}

double SquaresOfRange(const float* values, size_t n) { return squares_of(values, n); }

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

AdamWFactors adamw_factors(const OptimizerStep& step) {
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
           const OptimizerStep& step) {
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
