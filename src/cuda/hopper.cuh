// Hopper's own instructions (sm_90a): products of a warpgroup, barriers in shared memory, clusters.
//
// All tiles have rows of 128 bytes, swizzled as in tiles.cuh and aligned to 1024 bytes: that is the
// 128-byte swizzle of the tensor cores. A tile serves as an operand whose inner dimension runs
// along its rows ("K-major") and as one whose inner dimension runs across them ("MN-major").
#pragma once

#include "cuda/check.h"
#include "cuda/gpu.h"
#include "cuda/tiles.cuh"

namespace snug::cuda {

// Kernels for this header's instructions have a body only where the compiler builds for sm_90a.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SNUG_HOPPER 1
#else
#define SNUG_HOPPER 0
#endif

inline constexpr int kGroupThreads = 128;   // of a warpgroup
inline constexpr uint32_t kRowBytes = 128;  // of a tile
inline constexpr uint32_t kTileAlign = 1024;

// 64 rows and 64 columns of fp32 in the registers of a warpgroup. Warp w has rows 16w to 16w + 15;
// its lanes hold them as they hold the results of multiply_add(), eight columns a block.
using Accumulator = float[8][4];

// What the tensor cores are told about a tile, or about a part of it that begins at this address.
// side_bytes: where an MN-major operand has more than 64 rows or columns, they lie in tiles side by
// side, so many bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t side_bytes = 16) {
  constexpr uint64_t kEightRows = 8 * kRowBytes / 16, kSwizzle128 = 1;
  return uint64_t((address >> 4) + (side_bytes / 16 << 16)) | kEightRows << 32 | kSwizzle128 << 62;
}
// The distance of 16 elements of the inner dimension, in descriptors.
inline constexpr uint64_t kAlongRows = 16 * 2 / 16, kAcrossRows = 16 * kRowBytes / 16;

#if SNUG_HOPPER

#define SNUG_BLOCK(d, b) "+f"(d[b][0]), "+f"(d[b][1]), "+f"(d[b][2]), "+f"(d[b][3])
#define SNUG_BLOCKS(d, b)                                                             \
  SNUG_BLOCK(d, b), SNUG_BLOCK(d, b + 1), SNUG_BLOCK(d, b + 2), SNUG_BLOCK(d, b + 3), \
      SNUG_BLOCK(d, b + 4), SNUG_BLOCK(d, b + 5), SNUG_BLOCK(d, b + 6), SNUG_BLOCK(d, b + 7)
#define SNUG_REGISTERS_0                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SNUG_REGISTERS_32                                                            \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SNUG_WGMMA(columns, type, registers) \
  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" registers "}, "
// Operands behind the accumulator's: descriptors of a and b, add, kAcrossA, kAcrossB.
#define SNUG_WGMMA_SHARED(columns, type, registers, a, b, add, across_a, across_b)     \
  "{ .reg .pred p; setp.ne.b32 p, " add ", 0; " SNUG_WGMMA(columns, type, registers) a \
      ", " b ", p, 1, 1, " across_a ", " across_b "; }"
#define SNUG_WGMMA_64(type) \
  SNUG_WGMMA_SHARED("64", type, SNUG_REGISTERS_0, "%32", "%33", "%34", "%35", "%36")
#define SNUG_WGMMA_128(type)                                                                   \
  SNUG_WGMMA_SHARED("128", type, SNUG_REGISTERS_0 ", " SNUG_REGISTERS_32, "%64", "%65", "%66", \
                    "%67", "%68")
#define SNUG_WGMMA_REGISTERS(type) \
  "{ .reg .pred p; setp.ne.b32 p, %37, 0; " SNUG_WGMMA("64", type, SNUG_REGISTERS_0) "{%32, %33, %34, %35}, " \
  "%36, p, 1, 1, %38; }"

// d[64, 64] (+)= a[64, 16] b[16, 64], asynchronously. kAcrossA, kAcrossB: the operand's inner
// dimension runs across the rows of its tile. add: 0 overwrites.
template <class T, int kAcrossA, int kAcrossB>
__device__ __forceinline__ void group_multiply(Accumulator& d, uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(SNUG_WGMMA_64("f16")
                 : SNUG_BLOCKS(d, 0)
                 : "l"(a), "l"(b), "r"(add), "n"(kAcrossA), "n"(kAcrossB));
  } else {
    asm volatile(SNUG_WGMMA_64("bf16")
                 : SNUG_BLOCKS(d, 0)
                 : "l"(a), "l"(b), "r"(add), "n"(kAcrossA), "n"(kAcrossB));
  }
}
// The same with a in registers, as an accumulator of 16 columns holds it after packing: a0 and a1
// are the two rows of the first eight columns, a2 and a3 of the second.
template <class T, int kAcrossB>
__device__ __forceinline__ void group_multiply(Accumulator& d, uint32_t a0, uint32_t a1,
                                               uint32_t a2, uint32_t a3, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(SNUG_WGMMA_REGISTERS("f16")
                 : SNUG_BLOCKS(d, 0)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(kAcrossB));
  } else {
    asm volatile(SNUG_WGMMA_REGISTERS("bf16")
                 : SNUG_BLOCKS(d, 0)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(kAcrossB));
  }
}
// The first form for 128 columns.
template <class T, int kAcrossA, int kAcrossB>
__device__ __forceinline__ void group_multiply(float (&d)[16][4], uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(SNUG_WGMMA_128("f16")
                 : SNUG_BLOCKS(d, 0), SNUG_BLOCKS(d, 8)
                 : "l"(a), "l"(b), "r"(add), "n"(kAcrossA), "n"(kAcrossB));
  } else {
    asm volatile(SNUG_WGMMA_128("bf16")
                 : SNUG_BLOCKS(d, 0), SNUG_BLOCKS(d, 8)
                 : "l"(a), "l"(b), "r"(add), "n"(kAcrossA), "n"(kAcrossB));
  }
}

// Registers and shared memory are as products see them only behind this.
__device__ __forceinline__ void before_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the kPending batches that ended last are done.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads and writes of a product's registers to before here.
template <int kBlocks>
__device__ __forceinline__ void pin(float (&d)[kBlocks][4]) {
#pragma unroll
  for (auto& block : d) {
#pragma unroll
    for (float& x : block) asm volatile("" : "+f"(x)::"memory");
  }
}
__device__ __forceinline__ void pin(uint32_t (&words)[8][2]) {
#pragma unroll
  for (auto& pair : words) asm volatile("" : "+r"(pair[0]), "+r"(pair[1])::"memory");
}

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

// What this thread wrote to shared memory is seen by products that start behind the next barrier.
__device__ __forceinline__ void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// One of the block's sixteen barriers, for some of its threads.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// The same where the barrier is not known at compile time, and without waiting: those who meet
// there go on when all have come.
__device__ __forceinline__ void meet_at(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void come_to(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The lanes of a warp. __syncwarp() leaves no instruction where they are known to be together, and
// racecheck does not see it then.
__device__ __forceinline__ void meet_in_warp(int barrier) { meet_at(barrier, 32); }

// Four 8x8 matrices to shared memory, as ldmatrix reads them.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ void prefetch(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// Barriers with phases in shared memory.
__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of this parity is over.
__device__ __forceinline__ void await(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; "
      "@!p bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// In a cluster of blocks: the address of shared memory of one of them.
__device__ __forceinline__ uint32_t address_at(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Barriers that were just made are seen by all blocks behind the next meeting.
__device__ __forceinline__ void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#endif  // SNUG_HOPPER

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
