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

#if SNUG_HOPPER

// The barrier's phase lasts until so many more bytes have come; counts as an arrival.
__device__ __forceinline__ void arrive_for_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// For the second-level cache: dropped first.
__device__ __forceinline__ uint64_t drop_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The box whose first element is at [row, column].
__device__ __forceinline__ void copy_in(uint32_t to, const CUtensorMap& from, int row, int column,
                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void copy_in(uint32_t to, const CUtensorMap& from, int row, int column,
                                        uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
// The same for a map with three steps of rows.
__device__ __forceinline__ void copy_in_steps(uint32_t to, const CUtensorMap& from, int row,
                                              int column, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %4, %4}], [%5];" ::"r"(to),
      "l"(&from), "r"(column), "r"(row), "r"(0), "r"(barrier)
      : "memory");
}
// Back. What was written to the tile must have been shown to the engine, see show_to_products().
__device__ __forceinline__ void copy_out(const CUtensorMap& to, int row, int column,
                                         uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
      "r"(column), "r"(row), "r"(from)
      : "memory");
}
__device__ __forceinline__ void copy_out(const CUtensorMap& to, int row, int column, uint32_t from,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, %2}], "
      "[%3], %4;" ::"l"(&to),
      "r"(column), "r"(row), "r"(from), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void end_copies_out() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the tiles of all but the kPending batches of this thread's that ended last may be
// overwritten.
template <int kPending>
__device__ __forceinline__ void wait_for_copies_out() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

#endif  // SNUG_HOPPER

}  // namespace snug::cuda
