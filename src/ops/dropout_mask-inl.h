// Dropout masks, many Philox counters at a time; bit for bit what dropout_mask.h defines. Rows of
// hidden values put consecutive blocks of columns into the lanes; attention, whose rows may be
// short, puts consecutive queries there. Included once per target.
#if defined(SNUG_OPS_DROPOUT_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_DROPOUT_MASK_INL_H_
#undef SNUG_OPS_DROPOUT_MASK_INL_H_
#else
#define SNUG_OPS_DROPOUT_MASK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/philox-inl.h"
#include "ops/dropout_mask.h"
#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVector = hn::Vec<WordTag>;

// One Philox call per lane, for counters {c0, c1} of the lane and the row's other two words. Writes
// 8 draws per lane.
HWY_INLINE void lane_draws(const DropoutMask& mask, uint64_t sample, WordVector c0, WordVector c1,
                           uint32_t* HWY_RESTRICT words /* [lanes, 4], aligned */) {
  const WordTag d;
  const auto rest = mask_counter(mask, {.sample = sample}, 0);
  WordVector c2 = hn::Set(d, rest[2]), c3 = hn::Set(d, rest[3]);
  philox_lanes<kMaskRounds>(d, mask.key, c0, c1, c2, c3);
  hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
}

// 0 or the scale, from as many draws as a vector has lanes.
HWY_INLINE FloatVector draw_factor(const DropoutMask& mask, const uint16_t* draws) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> dh;
  const auto draw = hn::PromoteTo(di, hn::LoadU(dh, draws));
  const auto kept = hn::RebindMask(d, hn::Gt(draw, hn::Set(di, int32_t(mask.threshold) - 1)));
  return hn::IfThenElseZero(kept, hn::Set(d, mask.scale));
}

// body(i, access, factor) for each vector of a row of `columns` values. `factor` is 1 everywhere
// when dropout is off.
template <class Body>
HWY_INLINE void over_masked_row(const DropoutMask& mask, const MaskRow& row, size_t columns,
                                const Body& body) {
  const FloatTag d;
  if (!mask.on()) {
    over_row(columns, [&](size_t i, auto access) HWY_ATTR { body(i, access, hn::Set(d, 1.0f)); });
    return;
  }
  const WordTag dw;
  HWY_ALIGN uint32_t words[16 * 4];
  uint16_t draws[16 * 8];
  const size_t strip = hn::Lanes(dw) * 8;
  for (size_t begin = 0; begin < columns; begin += strip) {
    const auto block = hn::Iota(dw, mask_counter(mask, row, uint32_t(begin / 8))[0]);
    lane_draws(mask, row.sample, block, hn::Set(dw, row.position), words);
    std::memcpy(draws, words, sizeof(draws));
    over_row(std::min(strip, columns - begin), [&](size_t i, auto access) HWY_ATTR {
      body(begin + i, access, draw_factor(mask, draws + i));
    });
  }
}

// The draws of attention rows first.position + [0, rows), columns (keys) [0, keys), to draws[row *
// stride + key]. Writes up to 7 draws behind a row's last key; stride >= keys rounded up to 8.
HWY_INLINE void attention_draws(const DropoutMask& mask, const MaskRow& first, size_t rows,
                                size_t keys, uint16_t* HWY_RESTRICT draws, size_t stride) {
  const WordTag d;
  HWY_ALIGN uint32_t words[16 * 4];
  for (size_t row = 0; row < rows; row += hn::Lanes(d)) {
    const auto position = hn::Iota(d, first.position + uint32_t(row));
    const size_t lanes = std::min(hn::Lanes(d), rows - row);
    for (size_t block = 0; block * 8 < keys; ++block) {
      const uint32_t c0 = mask_counter(mask, first, uint32_t(block))[0];
      lane_draws(mask, first.sample, hn::Set(d, c0), position, words);
      for (size_t lane = 0; lane < lanes; ++lane) {
        std::memcpy(draws + (row + lane) * stride + block * 8, words + lane * 4, 16);
      }
    }
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
