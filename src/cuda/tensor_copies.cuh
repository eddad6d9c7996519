// Hopper's copy engine: boxes of a matrix in global memory to and from tiles in shared memory,
// started by one thread. What of a box lies outside of the matrix is read as zeros and not written.
#pragma once

#include <cuda.h>

#include "cuda/hopper.cuh"

namespace snug::cuda {

// A matrix [rows, cols] of 16-bit values and the boxes it is copied in. A box is 64 columns at
// most: a row of a tile.
struct CopiedMatrix {
  const void* data = nullptr;
  int64_t rows = 0, cols = 0;
  int box_rows = 0;
};
// What the engine is told about it, an argument of kernels. `data` is aligned to 16 bytes, cols is
// a multiple of 8.
CUtensorMap tensor_map(const CopiedMatrix& matrix);

// The rows of a box may also lie apart: box_rows next to each other, then in three steps, the first
// of which changes fastest, `count` times that at `distance` rows from each other. Zeros do not
// follow where such rows end: only whole boxes within the matrix may be copied.
struct RowStep {
  int count = 1, distance = 1;
};
CUtensorMap tensor_map(const CopiedMatrix& matrix, const RowStep (&steps)[3]);

}  // namespace snug::cuda
