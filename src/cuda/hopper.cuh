// What kernels for Hopper share.
//
// All tiles have rows of 128 bytes, swizzled as in tiles.cuh and aligned to 1024 bytes: that is the
// 128-byte swizzle of the tensor cores. A tile serves as an operand whose inner dimension runs
// along its rows ("K-major") and as one whose inner dimension runs across them ("MN-major").
#pragma once

#include "cuda/check.h"
#include "cuda/gpu.h"
#include "cuda/hopper_instructions.cuh"
#include "cuda/tiles.cuh"

namespace snug::cuda {

inline constexpr int kGroupThreads = 128;   // of a warpgroup
inline constexpr uint32_t kRowBytes = 128;  // of a tile
inline constexpr uint32_t kTileAlign = 1024;

// What the tensor cores are told about a tile, or about a part of it that begins at this address.
// side_bytes: where an MN-major operand has more than 64 rows or columns, they lie in tiles side by
// side, so many bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t side_bytes = 16) {
  constexpr uint64_t kEightRows = 8 * kRowBytes / 16, kSwizzle128 = 1;
  return uint64_t((address >> 4) + (side_bytes / 16 << 16)) | kEightRows << 32 | kSwizzle128 << 62;
}
// The distance of 16 elements of the inner dimension, in descriptors.
inline constexpr uint64_t kAlongRows = 16 * 2 / 16, kAcrossRows = 16 * kRowBytes / 16;

// Of the columns of a warp's rows: a lane gives its two columns of eight blocks, each added up over
// its own rows, and gets in the first two elements, if it is lane 4g + t, the sums over all rows of
// its columns of block g. Lanes that have the same columns give each other half of what is left of
// them and add what they keep.
template <int kLeft = 8>
__device__ __forceinline__ void add_over_rows(float (&columns)[16]) {
  constexpr int kDistance = 2 * kLeft;
  const bool upper = int(threadIdx.x) & kDistance;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    const float given = upper ? columns[i] : columns[kLeft + i];
    columns[i] =
        (upper ? columns[kLeft + i] : columns[i]) + __shfl_xor_sync(0xffffffffu, given, kDistance);
  }
  if constexpr (kLeft > 2) add_over_rows<kLeft / 2>(columns);
}

// On the host: whether the device runs sm_90a code and this kernel was built for it. Its body,
// where it has one, owns static shared memory; the empty one has none.
template <class Kernel>
bool has_hopper_body(Kernel* kernel) {
  if (device_limits().capability != 90) return false;
  cudaFuncAttributes attributes = {};
  SNUG_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.sharedSizeBytes > 0;
}

}  // namespace snug::cuda
