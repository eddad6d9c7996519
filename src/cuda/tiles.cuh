// Tiles: matrices of 16-bit values in shared memory whose rows are cut into chunks of 16 bytes.
// Chunks are swizzled within a row, so that eight rows of the same chunk, what one ldmatrix reads,
// lie in different banks.
#pragma once

#include <cstdint>

#include "cuda/instructions.cuh"
#include "cuda/pairs.cuh"

namespace snug::cuda {

template <int kWidth>
__device__ __forceinline__ int swizzled_chunk(int row, int chunk) {
  // Rows of whole 128 bytes need all eight places; of others two lie in 128 bytes and four places
  // do.
  return kWidth % 64 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
}

// The address of a chunk within a tile, in bytes.
template <int kWidth>
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return uint32_t(row * (kWidth / 8) + swizzled_chunk<kWidth>(row, chunk)) * 16;
}

// ldmatrix reads four 8x8 matrices; each lane gives the address of one row. The matrices are the
// quarters of a block of 16 rows and two chunks; which neighbours the first two are depends on the
// operand.
template <int kWidth>
struct QuarterRows {
  uint32_t row_bytes, column;
  int row;

  // kRowsFirst: quarters 0 and 1 are rows 0-7 and 8-15 of the first chunk; otherwise the two chunks
  // of rows 0-7.
  __device__ __forceinline__ explicit QuarterRows(bool rows_first) {
    const int lane = int(threadIdx.x) % 32, low = lane >> 3 & 1, high = lane >> 4;
    row = (rows_first ? low : high) * 8 + (lane & 7);
    row_bytes = uint32_t(row * (kWidth / 8) * 16);
    column = uint32_t(swizzled_chunk<kWidth>(row, rows_first ? high : low));
  }
  // row: a multiple of 8, chunk: even
  __device__ __forceinline__ uint32_t at(uint32_t tile, int first_row, int chunk) const {
    return tile + uint32_t(first_row * (kWidth / 8) * 16) + row_bytes +
           ((uint32_t(chunk) ^ column) << 4);
  }
};

}  // namespace snug::cuda
