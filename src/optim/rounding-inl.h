// Stochastic rounding of many elements at a time; bit for bit what rounding.h defines. Included
// once per target.
#if defined(SNUG_OPTIM_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPTIM_ROUNDING_INL_H_
#undef SNUG_OPTIM_ROUNDING_INL_H_
#else
#define SNUG_OPTIM_ROUNDING_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/philox-inl.h"
#include "optim/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// Updates that draw walk over this many elements at a time.
inline constexpr size_t kStrip = 256;

// At most 16 lanes: a strip holds whole vectors on every target.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVector = hn::Vec<FloatTag>;

// The draws of elements [first, first + kStrip); first is a multiple of eight.
HWY_INLINE void strip_draws(const RoundingDraws& draws, RoundedArray array, uint64_t first,
                            uint16_t* HWY_RESTRICT to) {
  const hn::RebindToUnsigned<FloatTag> d;
  HWY_ALIGN uint32_t words[16 * 4];
  for (size_t block = 0; block < kStrip / 8; block += hn::Lanes(d)) {
    const auto counter = rounding_counter(draws, array, uint32_t(first / 8 + block));
    auto c0 = hn::Iota(d, counter[0]), c1 = hn::Set(d, counter[1]), c2 = hn::Set(d, counter[2]),
         c3 = hn::Set(d, counter[3]);
    philox_lanes<kRoundingRounds>(d, draws.key, c0, c1, c2, c3);
    hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
    std::memcpy(to + block * 8, words, hn::Lanes(d) * 4 * sizeof(uint32_t));
  }
}

HWY_INLINE FloatVector load_bfloat16(const uint16_t* from) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  return hn::BitCast(
      d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, FloatTag>(), from))));
}

HWY_INLINE void store_rounded(FloatVector value, const uint16_t* draws, uint16_t* to) {
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> dh;
  const auto bits = hn::BitCast(du, value), draw = hn::PromoteTo(du, hn::LoadU(dh, draws));
  const auto exponent = hn::Set(du, 0x7f800000u);
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, draw));
  const auto quiet = hn::IfThenElseZero(hn::Ne(hn::And(bits, hn::Set(du, 0x7fffffu)), hn::Zero(du)),
                                        hn::Set(du, 0x40u));
  const auto kept = hn::Or(hn::ShiftRight<16>(bits), quiet);
  const auto result = hn::IfThenElse(hn::Eq(hn::And(bits, exponent), exponent), kept, rounded);
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, result)), dh, to);
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
