// AdamW over weights that exist in bf16 alone, with moments in bf16, all rounded stochastically
// (rounding.h): six bytes a parameter besides its gradient, where fp32 takes twelve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "optim/step.h"

namespace snug {

// The state: first moments [size], then second moments [size], each from an aligned address.
struct HalfMomentLayout {
  size_t second = 0, bytes = 0;
};
HalfMomentLayout half_moment_layout(int64_t size);

// As adamw(), computed in fp32 from and to bf16; `parameter` is its number in the model, for the
// draws. Independent of the number of threads.
void adamw_bf16(std::span<uint16_t> w, std::span<const float> g, std::byte* state,
                const OptimizerStep& step, uint64_t parameter);

}  // namespace snug
