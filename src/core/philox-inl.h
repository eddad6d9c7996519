// Philox, one call per lane of a Highway vector; bit for bit what philox.h defines. Included once
// per target.
#if defined(SNUG_CORE_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_CORE_PHILOX_INL_H_
#undef SNUG_CORE_PHILOX_INL_H_
#else
#define SNUG_CORE_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstdint>

#include "core/philox.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// (low, high) := the halves of the 64-bit products of all lanes of a with m. D: a tag of uint32_t.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void multiply_wide(D d, V a, V m, V& low, V& high) {
#if HWY_TARGET == HWY_SCALAR  // has no wider lanes
  const uint64_t product = uint64_t{hn::GetLane(a)} * hn::GetLane(m);
  low = hn::Set(d, uint32_t(product));
  high = hn::Set(d, uint32_t(product >> 32));
#else
  const hn::RepartitionToWide<D> dw;
  const auto even = hn::MulEven(a, m);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(dw, a))), m);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
}

// The four words of each lane's counter become its four draws.
template <int kRounds, class D, class V = hn::Vec<D>>
HWY_INLINE void philox_lanes(D d, std::array<uint32_t, 2> key, V& c0, V& c1, V& c2, V& c3) {
  for (int round = 0; round < kRounds; ++round) {
    V low0, high0, low1, high1;
    multiply_wide(d, c0, hn::Set(d, kPhiloxMul0), low0, high0);
    multiply_wide(d, c2, hn::Set(d, kPhiloxMul1), low1, high1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key[0]));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key[1]));
    c1 = low1;
    c3 = low0;
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
