#include "optim/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/sgd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstddef>

#ifndef SNUG_OPTIM_SGD_ARGUMENTS_
#define SNUG_OPTIM_SGD_ARGUMENTS_
namespace snug {

struct SgdArrays {
  float* w;
  const float* g;
  float* b;  // null without momentum
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE void descend(D d, const SgdArrays& a, size_t i, const SgdFactors& f) {
  const auto w = hn::LoadU(d, a.w + i);
  const auto g =
      hn::MulAdd(hn::LoadU(d, a.g + i), hn::Set(d, f.gradient), hn::Mul(w, hn::Set(d, f.decay)));
  auto b = g;
  if (a.b) {
    b = hn::MulAdd(hn::LoadU(d, a.b + i), hn::Set(d, f.momentum), g);
    hn::StoreU(b, d, a.b + i);
  }
  hn::StoreU(hn::NegMulAdd(hn::Set(d, f.learning_rate), b, w), d, a.w + i);
}

void DescendRange(const SgdArrays& arrays, size_t begin, size_t end, const SgdFactors& factors) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  size_t i = begin;
  for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) descend(d, arrays, i, factors);
  for (; i < end; ++i) descend(one, arrays, i, factors);
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "core/error.h"

namespace snug {

HWY_EXPORT(DescendRange);

SgdFactors sgd_factors(const OptimizerStep& step) {
  return {.gradient = float(step.gradient_scale),
          .decay = float(step.weight_decay),
          .momentum = float(step.momentum),
          .learning_rate = float(step.learning_rate)};
}

void sgd(std::span<float> w, std::span<const float> g, std::span<float> b,
         const OptimizerStep& step) {
  SNUG_CHECK(g.size() == w.size() && (b.empty() || b.size() == w.size()));
  const SgdFactors factors = sgd_factors(step);
  const SgdArrays arrays = {w.data(), g.data(), b.empty() ? nullptr : b.data()};
  // Pieces of whole vectors, as in adamw().
  constexpr int64_t kPiece = 16384;
  const auto size = int64_t(w.size());
#pragma omp parallel for schedule(static) if (size > kPiece)
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    HWY_DYNAMIC_DISPATCH(DescendRange)
    (arrays, size_t(begin), size_t(std::min(size, begin + kPiece)), factors);
  }
}

}  // namespace snug
#endif  // HWY_ONCE
