// Sums of squares in fp64. Included once per target.
#if defined(SNUG_OPTIM_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPTIM_SQUARES_INL_H_
#undef SNUG_OPTIM_SQUARES_INL_H_
#else
#define SNUG_OPTIM_SQUARES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE double squares_of(const float* values, size_t n) {
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

#endif
