// Walking rows of floats with Highway vectors. The last, partial vector of a row is loaded and
// stored lane by lane where the target's masked access could touch memory behind the row, so no
// kernel reads past the end of a tensor. Included once per target (no #pragma once).
#if defined(SNUG_OPS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_SIMD_INL_H_
#undef SNUG_OPS_SIMD_INL_H_
#else
#define SNUG_OPS_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that workspaces padded to 16 floats hold whole vectors on every target.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVector = hn::Vec<FloatTag>;

// A full vector of a row.
struct Whole {
  static HWY_INLINE FloatVector load(FloatTag d, const float* p) { return hn::LoadU(d, p); }
  static HWY_INLINE void store(FloatVector v, FloatTag d, float* p) { hn::StoreU(v, d, p); }
  static HWY_INLINE FloatVector present(FloatTag, FloatVector v) { return v; }
};

// The first n lanes of a vector: absent lanes load as zero and are not stored.
struct Part {
  size_t n;

  HWY_INLINE FloatVector load(FloatTag d, const float* p) const {
    HWY_ALIGN float lanes[16] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return hn::Load(d, lanes);
  }
  HWY_INLINE void store(FloatVector v, FloatTag d, float* p) const {
    HWY_ALIGN float lanes[16];
    hn::Store(v, d, lanes);
    std::memcpy(p, lanes, n * sizeof(float));
  }
  // Zero in absent lanes, for sums of what does not vanish with its operands.
  HWY_INLINE FloatVector present(FloatTag d, FloatVector v) const {
    return hn::IfThenElseZero(hn::FirstN(d, n), v);
  }
};

// body(i, access) for each vector of the columns [0, n); `access` is a Whole or, at the end, a
// Part.
template <class Body>
HWY_INLINE void over_row(size_t n, const Body& body) {
  const FloatTag d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) body(i, Whole());
  if (i < n) body(i, Part{n - i});
}

HWY_INLINE float sum_of_lanes(FloatVector v) {
  const FloatTag d;
  return hn::GetLane(hn::SumOfLanes(d, v));
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
