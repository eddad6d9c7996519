// Scratch that CUDA kernels need, as figures a plan can use where there is no GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace snug {

// What cuBLASLt may use during one product: its own advice for Hopper; older cards need less.
inline constexpr size_t kProductWorkspaceBytes = size_t{32} << 20;

// Sums over rows are taken in up to so many pieces, one per multiprocessor of an H100, which are then added in order.
inline constexpr int64_t kColumnSumPieces = 132;

constexpr size_t column_sum_bytes(int64_t cols, int64_t sums) {
  return size_t(kColumnSumPieces * cols * sums) * sizeof(float);
}

}  // namespace snug
