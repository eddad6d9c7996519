// The one definition of dropout masks. A mask element is a pure function of (seed, site, example,
// position, column), so it does not know how examples were packed, and backward draws it again
// instead of keeping it. One Philox call yields eight 16-bit draws, for eight consecutive columns;
// the fast generators in dropout_mask-inl.h give the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/error.h"
#include "core/philox.h"
#include "graph/op.h"

namespace snug {

struct DropoutMask {
  std::array<uint32_t, 2> key = {};  // seed, low half first
  uint32_t site = 0;                 // which dropout of the model, below 2^24
  uint32_t threshold = 0;  // an element is kept if its draw is not below; 0: dropout is off
  float scale = 1.0f;      // of kept elements: their expectation is exact

  constexpr bool on() const { return threshold > 0; }
};

inline constexpr uint32_t kDropoutDraws = 65536;  // a draw is one of so many values
// Seven rounds are the fewest that pass every test of the generator's authors; a mask is drawn
// three times a step.
inline constexpr int kMaskRounds = 7;

// The mask of a site with probability p of dropping, 0 <= p < 1. Off when not training.
inline DropoutMask dropout_mask(float p, uint32_t site, const StepContext& step) {
  SNUG_CHECK(p >= 0.0f && p < 1.0f && site < (1u << 24));
  DropoutMask mask;
  if (!step.training) return mask;
  mask.key = {uint32_t(step.seed), uint32_t(step.seed >> 32)};
  mask.site = site;
  mask.threshold = std::min(uint32_t(p * kDropoutDraws + 0.5f), kDropoutDraws - 1);
  mask.scale = float(double(kDropoutDraws) / double(kDropoutDraws - mask.threshold));
  return mask;
}

// Which row of an example a mask is for. Attention's rows are queries, its columns keys, and `head`
// joins the counter.
struct MaskRow {
  uint64_t sample = 0;    // ordinal of the example in the run, below 2^40
  uint32_t position = 0;  // token within the example; 0 where there is one row per example
  uint32_t head = 0;      // below 2^16; 0 outside attention
};

constexpr std::array<uint32_t, 4> mask_counter(const DropoutMask& mask, const MaskRow& row,
                                               uint32_t block) {
  return {row.head << 16 | block, row.position, uint32_t(row.sample),
          mask.site << 8 | (uint32_t(row.sample >> 32) & 0xff)};
}

// The draw of one element: the halves of the four words in order, low half first.
constexpr uint32_t mask_draw(const DropoutMask& mask, const MaskRow& row, uint32_t column) {
  const auto words = philox<kMaskRounds>(mask_counter(mask, row, column / 8), mask.key);
  const uint32_t half = column % 8;
  return words[half / 2] >> (half % 2 * 16) & 0xffff;
}

// What the element is multiplied with: 0 or the scale.
constexpr float mask_factor(const DropoutMask& mask, const MaskRow& row, uint32_t column) {
  if (!mask.on()) return 1.0f;
  return mask_draw(mask, row, column) >= mask.threshold ? mask.scale : 0.0f;
}

// The mask rows of packed tensors: one row per token, per sequence, or per token that predicts.
inline MaskRow token_mask_row(const Batch& batch, int64_t token) {
  return {batch.samples[batch.row_of[token]], uint32_t(batch.positions[token]), 0};
}
inline MaskRow sequence_mask_row(const Batch& batch, int64_t sequence) {
  return {batch.samples[sequence], 0, 0};
}
inline MaskRow mask_row(const Batch& batch, Rows rows, int64_t row) {
  if (rows == Rows::kSequences) return sequence_mask_row(batch, row);
  return token_mask_row(batch, rows == Rows::kTargets ? batch.target_rows[row] : row);
}

}  // namespace snug
