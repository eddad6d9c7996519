// Symmetric int8: a row of values is its scale, the largest magnitude / 127, times integers in
// [-127, 127], rounded to nearest even. Weights are quantised once, one scale for each output
// channel or table row; activations while they are used, one scale for each token.
#pragma once

#include <cstddef>
#include <cstdint>

namespace snug {

inline constexpr float kQuantizedMax = 127.0f;
// Rows below this have no finite 1 / scale: they count as zero.
inline constexpr float kQuantizedNothing = 1e-30f;

// q[rows, cols] and scales[rows] of x[rows, cols]. A row of zeros has scale zero; one with NaN or
// infinity a scale that is not finite either.
void quantize_rows(const float* x, int64_t rows, int64_t cols, int8_t* q, float* scales);

// x = scale * q.
void dequantize_rows(const int8_t* q, const float* scales, int64_t rows, int64_t cols, float* x);

}  // namespace snug
