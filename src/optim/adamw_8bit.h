// AdamW with moments of eight bits each, in blocks of 256 elements that share a scale (Dettmers et
// al., "8-bit Optimizers via Block-wise Quantization", 2021). Two decisions differ from that paper.
// Of the second moment its root is stored, which is what the update divides by: the codes then
// reach gradients ten million times smaller than the block's largest, and none but zero becomes
// zero. And it is rounded stochastically: a moving average with beta2 = 0.999 changes by less than
// the distance of two codes, which rounding to nearest would never let happen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "optim/step.h"

namespace snug {

inline constexpr int64_t kMomentBlock = 256;

// Where the parts of a parameter's state lie; all zero bytes are moments of zero. Codes are those
// of dynamic_tree.h, scales fp32: first moments [size], second moments [size], then a scale per
// block of the first ones and of the second.
struct EightBitLayout {
  size_t second = 0, first_scales = 0, second_scales = 0, bytes = 0;
};
EightBitLayout eight_bit_layout(int64_t size);

// As adamw(), from and to the moments in `state`; `parameter` is its number in the model, for the
// draws of rounding.h. Independent of the number of threads.
void adamw_8bit(std::span<float> w, std::span<const float> g, std::byte* state,
                const OptimizerStep& step, uint64_t parameter);

}  // namespace snug
