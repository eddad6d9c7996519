// The instructions of src/cuda/instructions.cuh on the emulated GPU.
#pragma once

#include "emulated_gpu/device.h"
#include "emulated_gpu/matrix_parts.h"

namespace snug::cuda {

template <class T>
constexpr bool has_tensor_cores() {
  return true;
}

inline float exp2_of(float x) {
  const float y = std::exp2(x);
  return std::fpclassify(y) == FP_SUBNORMAL ? 0.0f : y;
}
inline float fast_reciprocal(float x) { return 1.0f / x; }
inline uint32_t spread_tops(uint32_t word) {
  return (word >> 31 ? 0xffff0000u : 0) | (word >> 15 & 1 ? 0xffffu : 0);
}

// A device may write lines that nobody reads again, or not: here they are lost.
inline void discard_line(const void* line) { std::memset(const_cast<void*>(line), 0xff, 128); }

inline uint32_t shared_address(const void* p) {
  return uint32_t(static_cast<const std::byte*>(p) - emulated::shared_base());
}

inline int lane_again() { return emulated::lane_number(); }

inline void meet_at(int barrier, int threads) { emulated::named_barrier(barrier).join(threads); }
template <int kThreads>
void meet_at(int barrier) {
  meet_at(barrier, kThreads);
}
template <int kBarrier, int kThreads>
void meet() {
  meet_at(kBarrier, kThreads);
}
inline void come_to(int barrier, int threads) { emulated::named_barrier(barrier).come(threads); }
inline void meet_in_warp(int barrier) { meet_at(barrier, 32); }

inline void copy_chunk(uint32_t to, const void* from, bool there) {
  emulated::begin_copy(to, there ? from : nullptr);
}
inline void end_copies() { emulated::end_copies(); }
template <int kPending = 0>
void wait_for_copies() {
  emulated::finish_copies(kPending);
}

template <bool kTransposed>
void load_four_matrices(uint32_t (&r)[4], uint32_t address) {
  struct Own {
    uint32_t (&r)[4];
    uint32_t address;
  } own{r, address};
  emulated::in_warp(0xffffffffu, own, [](const auto& of) {
    uint16_t matrices[4][8][8];
    for (int lane = 0; lane < 32; ++lane) {
      std::memcpy(matrices[lane / 8][lane % 8], emulated::shared_at(of(lane).address), 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      for (int i = 0; i < 4; ++i) {
        const auto& m = matrices[i];
        of(lane).r[i] = kTransposed ? m[t][g] | uint32_t(m[t + 1][g]) << 16
                                    : m[g][t] | uint32_t(m[g][t + 1]) << 16;
      }
    }
  });
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  load_four_matrices<false>(r, address);
}
inline void load_transposed(uint32_t (&r)[4], uint32_t address) {
  load_four_matrices<true>(r, address);
}

template <class T>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Own {
    float (&c)[4];
    const uint32_t (&a)[4];
    uint32_t b[2];
  } own{c, a, {b0, b1}};
  emulated::in_warp(0xffffffffu, own, [](const auto& of) {
    float a[16][16], b[16][8], c[16][8];
    emulated::left_operand<T>([&](int lane) { return &of(lane).a[0]; }, a);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      for (int i = 0; i < 2; ++i) {
        emulated::widen_pair<T>(of(lane).b[i], b[t + i * 8][g], b[t + i * 8 + 1][g]);
      }
      for (int i = 0; i < 4; ++i) c[g + i / 2 * 8][t + i % 2] = of(lane).c[i];
    }
    emulated::multiply(a, b, c);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) of(lane).c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  });
}

}  // namespace snug::cuda
