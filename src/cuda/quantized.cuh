// int8 values in groups of eight, as in cuda/rows.cuh.
#pragma once

#include "cuda/rows.cuh"

namespace snug::cuda {

// scale times the eight columns from `column` on.
template <bool kWhole>
__device__ inline Eight load_quantized(const int8_t* row, int column, int cols, float scale) {
  Eight eight;
  if constexpr (kWhole) {
    const uint2 bytes = *reinterpret_cast<const uint2*>(row + column);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      eight.at[i] = scale * float(int8_t((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8)));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (column + i < cols) eight.at[i] = scale * float(row[column + i]);
    }
  }
  return eight;
}

}  // namespace snug::cuda
