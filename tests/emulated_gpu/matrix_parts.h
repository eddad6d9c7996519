// What tensor cores compute, element by element: 16-bit values, and in which lane's registers an
// element lies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace emulated {

template <class T>
float widened(uint16_t bits) {
  if constexpr (std::is_same_v<T, __half>) {
    return _cvtsh_ss(bits);
  } else {
    return std::bit_cast<float>(uint32_t(bits) << 16);
  }
}
template <class T>
void widen_pair(uint32_t pair, float& first, float& second) {
  first = widened<T>(uint16_t(pair));
  second = widened<T>(uint16_t(pair >> 16));
}

// c[rows][cols] += a[rows][depth] b[depth][cols]
template <int kRows, int kCols, int kDepth>
void multiply(const float (&a)[kRows][kDepth], const float (&b)[kDepth][kCols],
              float (&c)[kRows][kCols]) {
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < kDepth; ++k) {
      const float factor = a[r][k];
      for (int col = 0; col < kCols; ++col) c[r][col] += factor * b[k][col];
    }
  }
}

// A left operand of 16 columns from the four words of each lane of a warp, for 16 rows.
template <class T, class WordsOf>
void left_operand(const WordsOf& words_of, float (*rows)[16]) {
  for (int lane = 0; lane < 32; ++lane) {
    const uint32_t* const words = words_of(lane);
    const int g = lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      float* const to = rows[g + i % 2 * 8] + column + i / 2 * 8;
      widen_pair<T>(words[i], to[0], to[1]);
    }
  }
}

// Chunks of 16 bytes in tiles with rows of 128 bytes change places within their row.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

}  // namespace emulated
