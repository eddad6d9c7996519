// What a GPU does that CUDA C++ has no word for: one function an instruction, and nothing else here
// but what the compiler must know to choose among them. Kernels have no other assembly than this
// header's and hopper_instructions.cuh's, so that a device that understands none
// (tests/emulated_gpu) needs only two headers of its own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace snug::cuda {

// Whether products of tiles of T exist for the architecture that is being compiled.
template <class T>
__device__ constexpr bool has_tensor_cores() {
#if __CUDA_ARCH__ >= 800
  return true;
#else
  return std::is_same_v<T, __half>;
#endif
}

// Arithmetic.

// 2^x, approximate to a unit or two in the last place, flushing subnormals.
__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Each half filled with its own top bit.
__device__ __forceinline__ uint32_t spread_tops(uint32_t word) {
  uint32_t bits;
  asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(bits) : "r"(word));
  return bits;
}

// Memory and threads.

// Where nobody reads 128 bytes again, what the second-level cache has of them need not go to
// memory.
__device__ __forceinline__ void discard_line(const void* line) {
#if __CUDA_ARCH__ >= 800
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory");
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// The lane again, for what is rare: the compiler shall not keep in registers what follows from it.
__device__ __forceinline__ int lane_again() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return int(lane % 32);
}

// One of the block's sixteen barriers, for some of its threads.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
// The same where the barrier is not known at compile time, or neither is.
template <int kThreads>
__device__ __forceinline__ void meet_at(int barrier) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void meet_at(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Without waiting: those who meet there go on when all have come.
__device__ __forceinline__ void come_to(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The lanes of a warp. __syncwarp() leaves no instruction where they are known to be together, and
// racecheck does not see it then.
__device__ __forceinline__ void meet_in_warp(int barrier) { meet_at(barrier, 32); }

// Tiles in shared memory, see tiles.cuh.

// 16 bytes from global to shared memory, or zeros, in which case `from` may point anywhere.
__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
#else
  const uint4 v = there ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
#endif
}
__device__ __forceinline__ void end_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all but the kPending batches that ended last are there.
template <int kPending = 0>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Four 8x8 matrices of 16-bit values; each lane gives the address of one row. Of matrix i, lane 4g
// + t gets the columns 2t and 2t + 1 of row g in r[i].
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// The same of the transposed matrices.
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8]. Lane 4g + t holds of c the columns 2t and 2t + 1 of rows g (c[0],
// c[1]) and g + 8; of a the same of both halves of the columns; of b rows 2t and 2t + 1 of column
// g, for both halves of the rows.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, "
        "%1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, "
        "%1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
  }
#endif
}

}  // namespace snug::cuda
