// What the attention kernels for Hopper (sm_90a) share: warpgroup products, barriers in shared memory, quicker draws.
//
// All tiles have rows of 128 bytes, swizzled like those of attention_common.cuh and aligned to 1024 bytes: that is the
// 128-byte swizzle of the tensor cores. A tile serves as an operand whose inner dimension runs along its rows
// ("K-major") and as one whose inner dimension runs across them ("MN-major").
#pragma once

#include "cuda/attention_common.cuh"

namespace snug::cuda::attention_kernels {

// Kernels for this header's instructions have a body only where the compiler builds for sm_90a.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SNUG_HOPPER 1
#else
#define SNUG_HOPPER 0
#endif

inline constexpr int kGroupThreads = 128;    // of a warpgroup
inline constexpr int kHopperDim = 64;        // the head size of these kernels
inline constexpr uint32_t kRowBytes = 128;   // of a tile
inline constexpr uint32_t kTileAlign = 1024;

// 64 rows and 64 columns of fp32 in the registers of a warpgroup. Warp w has rows 16w to 16w + 15; its lanes hold them
// as they hold the results of multiply_add(), eight columns a block.
using Accumulator = float[8][4];

// What the tensor cores are told about a tile, or about a part of it that begins at this address.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  constexpr uint64_t kEightRows = 8 * kRowBytes / 16, kSwizzle128 = 1;
  return uint64_t((address >> 4) + (1u << 16)) | kEightRows << 32 | kSwizzle128 << 62;
}
// The distance of 16 elements of the inner dimension, in descriptors.
inline constexpr uint64_t kAlongRows = 16 * 2 / 16, kAcrossRows = 16 * kRowBytes / 16;

#if SNUG_HOPPER

#define SNUG_ACCUMULATOR(d)                                                                                         \
  "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),         \
      "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),     \
      "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),     \
      "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),     \
      "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
#define SNUG_WGMMA(type)                                                                                            \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                                       \
  " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}, "
#define SNUG_WGMMA_SHARED(type)                                                                                     \
  "{ .reg .pred p; setp.ne.b32 p, %34, 0; " SNUG_WGMMA(type) "%32, %33, p, 1, 1, %35, %36; }"
#define SNUG_WGMMA_REGISTERS(type)                                                                                  \
  "{ .reg .pred p; setp.ne.b32 p, %37, 0; " SNUG_WGMMA(type) "{%32, %33, %34, %35}, %36, p, 1, 1, %38; }"

// d[64, 64] (+)= a[64, 16] b[16, 64], asynchronously. kAcrossA, kAcrossB: the operand's inner dimension runs across the
// rows of its tile. add: 0 overwrites.
template <class T, int kAcrossA, int kAcrossB>
__device__ __forceinline__ void group_multiply(Accumulator& d, uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(SNUG_WGMMA_SHARED("f16")
                 : SNUG_ACCUMULATOR(d)
                 : "l"(a), "l"(b), "r"(add), "n"(kAcrossA), "n"(kAcrossB));
  } else {
    asm volatile(SNUG_WGMMA_SHARED("bf16")
                 : SNUG_ACCUMULATOR(d)
                 : "l"(a), "l"(b), "r"(add), "n"(kAcrossA), "n"(kAcrossB));
  }
}
// The same with a in registers, as an accumulator of 16 columns holds it after packing: a0 and a1 are the two rows of
// the first eight columns, a2 and a3 of the second.
template <class T, int kAcrossB>
__device__ __forceinline__ void group_multiply(Accumulator& d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint64_t b, int add) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(SNUG_WGMMA_REGISTERS("f16")
                 : SNUG_ACCUMULATOR(d)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(kAcrossB));
  } else {
    asm volatile(SNUG_WGMMA_REGISTERS("bf16")
                 : SNUG_ACCUMULATOR(d)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(kAcrossB));
  }
}

// d = a bᵀ over the 64 columns of both tiles.
template <class T>
__device__ __forceinline__ void multiply_rows(Accumulator& d, uint32_t a_tile, uint32_t b_tile) {
  const uint64_t a = tile_descriptor(a_tile), b = tile_descriptor(b_tile);
#pragma unroll
  for (uint64_t step = 0; step < 4; ++step) {
    group_multiply<T, 0, 0>(d, a + step * kAlongRows, b + step * kAlongRows, step > 0);
  }
}
// d (+)= a b: a [64, 64] packed in registers, b over the 64 rows of a tile.
template <class T>
__device__ __forceinline__ void multiply_packed(Accumulator& d, const uint32_t (&a)[8][2], uint32_t b_tile, int add) {
  const uint64_t b = tile_descriptor(b_tile);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    group_multiply<T, 1>(d, a[2 * step][0], a[2 * step][1], a[2 * step + 1][0], a[2 * step + 1][1],
                         b + uint64_t(step) * kAcrossRows, step > 0 ? 1 : add);
  }
}

// Registers and shared memory are as products see them only behind this.
__device__ __forceinline__ void before_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the kPending batches that ended last are done.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads and writes of a product's registers to before here.
__device__ __forceinline__ void pin(Accumulator& d) {
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

// What this thread wrote to shared memory is seen by products that start behind the next barrier.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

// The same where the barrier is not known at compile time, and without waiting: those who meet there go on when all
// have come.
__device__ __forceinline__ void meet_at(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void come_to(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Four 8x8 matrices to shared memory, as ldmatrix reads them.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

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
      "{\n"
      ".reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

#endif  // SNUG_HOPPER

// Philox in parts. Most of its first three rounds depends on the query alone or on the block of keys alone.
struct DrawRow {
  uint32_t high, low;
};
struct DrawBlock {
  uint32_t low0, low1, high2, low2;
};

template <class T>
__device__ __forceinline__ DrawRow draw_row(const Arguments<T>& a, const Place& place, int query) {
  const uint32_t first = __umulhi(kPhiloxMul1, uint32_t(place.sample)) ^ uint32_t(query) ^ a.keys.keys[0][0];
  const uint64_t p = uint64_t{kPhiloxMul0} * first;
  return {uint32_t(p >> 32), uint32_t(p)};
}
template <class T>
__device__ __forceinline__ DrawBlock draw_block(const Arguments<T>& a, const Place& place, int block) {
  const auto c = mask_counter(a.mask, {place.sample, 0, uint32_t(place.head)}, uint32_t(block));
  const uint64_t p0 = uint64_t{kPhiloxMul0} * c[0];
  const uint64_t p1 = uint64_t{kPhiloxMul1} * (uint32_t(p0 >> 32) ^ c[3] ^ a.keys.keys[0][1]);
  const uint64_t p2 =
      uint64_t{kPhiloxMul0} * (uint32_t(p1 >> 32) ^ kPhiloxMul1 * uint32_t(place.sample) ^ a.keys.keys[1][0]);
  return {uint32_t(p0), uint32_t(p1), uint32_t(p2 >> 32), uint32_t(p2)};
}
// The same words as draws_of().
template <class T>
__device__ __forceinline__ std::array<uint32_t, 4> draws_of(const Arguments<T>& a, const DrawRow& row,
                                                            const DrawBlock& block) {
  const uint64_t p = uint64_t{kPhiloxMul1} * (row.high ^ block.low0 ^ a.keys.keys[1][1]);
  std::array<uint32_t, 4> c = {uint32_t(p >> 32) ^ block.low1 ^ a.keys.keys[2][0], uint32_t(p),
                               block.high2 ^ row.low ^ a.keys.keys[2][1], block.low2};
#pragma unroll
  for (int round = 3; round < kMaskRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMul0} * c[0], p1 = uint64_t{kPhiloxMul1} * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ a.keys.keys[round][0], uint32_t(p1),
         uint32_t(p0 >> 32) ^ c[3] ^ a.keys.keys[round][1], uint32_t(p0)};
  }
  return c;
}

// Compares both draws of a word with the threshold. The top bits of the halves say whether the elements are kept; other
// bits mean nothing.
inline constexpr uint32_t kTops = 0x80008000u;
__device__ __forceinline__ uint32_t kept_tops(const KeepWords& keep, uint32_t word) {
  const uint32_t difference = (word | kTops) - keep.rest;  // never borrows from the other half
  return (word & difference) | ((word | difference) & keep.either);
}
// Halves of ones where kept, of zeros where not.
__device__ __forceinline__ uint32_t kept_halves(const KeepWords& keep, uint32_t word) {
  uint32_t bits;
  asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(bits) : "r"(kept_tops(keep, word)));
  return bits;
}

// On the host: whether the device runs sm_90a code and this kernel was built for it. Its body, where it has one, owns
// static shared memory; the empty one has none.
template <class Kernel>
bool has_hopper_body(Kernel* kernel) {
  if (device_limits().capability != 90) return false;
  cudaFuncAttributes attributes = {};
  SNUG_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.sharedSizeBytes > 0;
}

// False: not for this device, this head size or these lengths; nothing was started.
template <class T>
bool launch_hopper_forward(Arguments<T> a, const Launch& call);
template <class T>
bool launch_hopper_backward(Arguments<T> a, const Launch& call);

}  // namespace snug::cuda::attention_kernels
