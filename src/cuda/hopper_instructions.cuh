// Hopper's own instructions (sm_90a), one function each: products of a warpgroup, barriers with
// phases in shared memory, clusters, and the copy engine.
#pragma once

#include <cuda.h>

#include "cuda/instructions.cuh"

// Kernels for these instructions have a body only where the compiler builds for sm_90a.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SNUG_HOPPER 1
#else
#define SNUG_HOPPER 0
#endif

namespace snug::cuda {

// 64 rows and 64 columns of fp32 in the registers of a warpgroup. Warp w has rows 16w to 16w + 15;
// its lanes hold them as they hold the results of multiply_add(), eight columns a block.
using Accumulator = float[8][4];

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
// 16 bytes to shared memory of any block of the cluster.
__device__ __forceinline__ void store_there(uint32_t address, const float (&four)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four[0]),
               "f"(four[1]), "f"(four[2]), "f"(four[3])
               : "memory");
}
// Barriers that were just made are seen by all blocks behind the next meeting.
__device__ __forceinline__ void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The lesser of each half, and halves of ones where those of both are equal fp16 numbers.
__device__ __forceinline__ uint32_t least_halves(uint32_t a, uint32_t b) {
  uint32_t least;
  asm("min.u16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
  return least;
}
__device__ __forceinline__ uint32_t equal_halves(uint32_t a, uint32_t b) {
  uint32_t bits;
  asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(a), "r"(b));
  return bits;
}

// The copy engine; one thread starts it.

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
