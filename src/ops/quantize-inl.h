// Rows of floats as int8 or wider integers; see quantize.h. Included once per target.
#if defined(SNUG_OPS_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_QUANTIZE_INL_H_
#undef SNUG_OPS_QUANTIZE_INL_H_
#else
#define SNUG_OPS_QUANTIZE_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>

#include "ops/quantize.h"
#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVector = hn::Vec<IntTag>;

// The largest magnitude of a row. Compared as integers, by which NaN is above everything: it is
// never lost.
HWY_INLINE float largest_magnitude(const float* x, size_t n) {
  const FloatTag d;
  const IntTag di;
  IntVector most = hn::Zero(di);
  over_row(n, [&](size_t i, auto access) HWY_ATTR {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(access.load(d, x + i))));
  });
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, most)));
}

// Calls store(i, access, integers) for the vectors of a row as multiples of its scale, which is
// returned.
template <class Store>
HWY_INLINE float quantize_row(const float* x, size_t n, const Store& store) {
  const FloatTag d;
  const float most = largest_magnitude(x, n);
  const bool nothing = most < kQuantizedNothing;
  const FloatVector factor = hn::Set(d, nothing ? 0.0f : kQuantizedMax / most);
  over_row(n, [&](size_t i, auto access) HWY_ATTR {
    store(i, access, hn::NearestInt(hn::Mul(access.load(d, x + i), factor)));
  });
  return nothing ? 0.0f : most / kQuantizedMax;
}

// int8 as floats.
HWY_INLINE FloatVector load_bytes(Whole, const int8_t* p) {
  const IntTag di;
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, IntTag>(), p)));
}
HWY_INLINE FloatVector load_bytes(Part part, const int8_t* p) {
  int8_t lanes[16] = {};
  std::memcpy(lanes, p, part.n);
  return load_bytes(Whole(), lanes);
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
