// The instructions of src/cuda/hopper_instructions.cuh on the emulated GPU. Products and boxes that
// a GPU computes and copies meanwhile are there at once.
#pragma once

#include <cuda.h>

#include "cuda/instructions.cuh"
#include "emulated_gpu/tensor_map.h"

#define SNUG_HOPPER 1

namespace snug::cuda {

using Accumulator = float[8][4];

}  // namespace snug::cuda

namespace emulated {

// An operand in shared memory: 16 elements of the inner dimension and up to 128 of the other, as
// tile_descriptor() of cuda/hopper.cuh describes it.
class Operand {
 public:
  Operand(uint64_t descriptor, bool across)
      : address_(uint32_t(descriptor & 0x3fff) << 4),
        side_bytes_(uint32_t(descriptor >> 16 & 0x3fff) << 4),
        eight_rows_(uint32_t(descriptor >> 32 & 0x3fff) << 4),
        across_(across) {}
  template <class T>
  float at(int inner, int other) const {
    const int row = across_ ? inner : other, column = across_ ? other % 64 : inner;
    const uint32_t side = across_ ? uint32_t(other / 64) * side_bytes_ : 0;
    const uint32_t address =
        address_ + side + uint32_t(row / 8) * eight_rows_ + uint32_t(row % 8 * 128 + column * 2);
    return widened<T>(*shared_at<uint16_t>(swizzled(address)));
  }

 private:
  uint32_t address_, side_bytes_, eight_rows_;
  bool across_;
};

// d[64, 8 kBlocks] (+)= a[64, 16] b[16, 8 kBlocks] by a warpgroup: left(of, a) fills a.
template <class T, int kBlocks, class Own, class Left>
void multiply_in_group(Own& own, const Left& left) {
  in_warpgroup(own, [&](const auto& of) {
    float a[64][16], b[16][kBlocks * 8], c[64][kBlocks * 8] = {};
    left(of, a);
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < kBlocks * 8; ++col) b[k][col] = of(0).b.template at<T>(k, col);
    }
    const auto each = [&](const auto& work) {
      for (int thread = 0; thread < 128; ++thread) {
        const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
        for (int block = 0; block < kBlocks; ++block) {
          for (int i = 0; i < 4; ++i) {
            work(of(thread).d[block][i], c[row + i / 2 * 8][block * 8 + column + i % 2]);
          }
        }
      }
    };
    if (of(0).add) each([](float d, float& element) { element = d; });
    multiply(a, b, c);
    each([](float& d, float element) { d = element; });
  });
}

// A barrier with phases, in the eight bytes it has in shared memory.
struct PhaseBarrier {
  uint32_t phase : 1, expected : 15, pending : 16;
  int32_t bytes;  // that are to come in this phase

  void end_phase_if_done() {
    if (pending > 0 || bytes != 0) return;
    phase ^= 1;
    pending = expected;
  }
};
inline PhaseBarrier& phase_barrier(uint32_t address) { return *shared_at<PhaseBarrier>(address); }

// Every chunk of a box, the first element of which is at `first`, where a row of the box has its
// row of a tile: work(where in shared memory, where in global memory or null outside of the
// tensor).
inline constexpr int kChunk = 8;  // 16-bit elements
template <class Work>
void for_chunks(const TensorMap& map, const int (&first)[kMaxTensorRank], uint32_t tile,
                const Work& work) {
  int at[kMaxTensorRank] = {};
  for (uint32_t row = 0; at[map.rank - 1] < int(map.box[map.rank - 1]); ++row) {
    std::byte* place = map.base;
    for (int i = 1; i < map.rank && place; ++i) {
      const int64_t index = int64_t(first[i]) + at[i];
      const bool there = index >= 0 && index < int64_t(map.sizes[i]);
      place = there ? place + index * int64_t(map.strides[i - 1]) : nullptr;
    }
    for (int column = 0; column < int(map.box[0]); column += kChunk) {
      const int64_t index = int64_t(first[0]) + column;
      const bool there = place && index >= 0 && index < int64_t(map.sizes[0]);
      work(swizzled(tile + row * 128 + uint32_t(column) * 2), there ? place + index * 2 : nullptr);
    }
    for (int i = 1; i < map.rank && ++at[i] == int(map.box[i]) && i + 1 < map.rank; ++i) at[i] = 0;
  }
}
inline void copy_box_in(uint32_t to, const CUtensorMap& from, const int (&first)[kMaxTensorRank],
                        uint32_t barrier) {
  int32_t bytes = 0;
  for_chunks(tensor_map_of(from), first, to, [&](uint32_t tile, const std::byte* chunk) {
    if (chunk) {
      std::memcpy(shared_at(tile), chunk, kChunk * 2);
    } else {
      std::memset(shared_at(tile), 0, kChunk * 2);
    }
    bytes += kChunk * 2;
  });
  phase_barrier(barrier).bytes -= bytes;
  phase_barrier(barrier).end_phase_if_done();
}

}  // namespace emulated

namespace snug::cuda {

template <class T, int kAcrossA, int kAcrossB, int kBlocks>
void group_multiply(float (&d)[kBlocks][4], uint64_t a, uint64_t b, int add) {
  struct Own {
    float (&d)[kBlocks][4];
    emulated::Operand a, b;
    int add;
  } own{d, {a, kAcrossA != 0}, {b, kAcrossB != 0}, add};
  emulated::multiply_in_group<T, kBlocks>(own, [](const auto& of, float(&left)[64][16]) {
    for (int row = 0; row < 64; ++row) {
      for (int k = 0; k < 16; ++k) left[row][k] = of(0).a.template at<T>(k, row);
    }
  });
}
template <class T, int kAcrossB>
void group_multiply(Accumulator& d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                    int add) {
  struct Own {
    Accumulator& d;
    uint32_t a[4];
    emulated::Operand b;
    int add;
  } own{d, {a0, a1, a2, a3}, {b, kAcrossB != 0}, add};
  emulated::multiply_in_group<T, 8>(own, [](const auto& of, float(&left)[64][16]) {
    for (int warp = 0; warp < 4; ++warp) {
      emulated::left_operand<T>([&](int lane) { return of(warp * 32 + lane).a; }, left + warp * 16);
    }
  });
}

inline void before_products() {}
inline void end_products() {}
template <int kPending>
void wait_for_products() {}
template <int kBlocks>
void pin(float (&)[kBlocks][4]) {}
inline void pin(uint32_t (&)[8][2]) {}
inline void show_to_products() {}
template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}
inline void prefetch(const void*) {}

inline void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  struct Own {
    uint32_t address, words[4];
  } own{address, {a, b, c, d}};
  emulated::in_warp(0xffffffffu, own, [](const auto& of) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        std::memcpy(emulated::shared_at(of(i * 8 + lane / 4).address) + lane % 4 * 4,
                    &of(lane).words[i], 4);
      }
    }
  });
}

inline void init_barrier(uint32_t barrier, uint32_t arrivals) {
  emulated::phase_barrier(barrier) = {0, arrivals, arrivals, 0};
}
inline void arrive(uint32_t barrier) {
  emulated::PhaseBarrier& b = emulated::phase_barrier(barrier);
  --b.pending;
  b.end_phase_if_done();
}
inline void await(uint32_t barrier, uint32_t parity) {
  while (emulated::phase_barrier(barrier).phase == parity) emulated::look_again_later();
}

// Of a byte that only store_there() is given: the rank stands above all addresses there are.
inline constexpr uint32_t kRankAt = 20;
inline uint32_t address_at(uint32_t address, uint32_t rank) { return rank << kRankAt | address; }
inline void store_there(uint32_t address, const float (&four)[4]) {
  const uint32_t there = address & ((1u << kRankAt) - 1);
  std::memcpy(emulated::shared_base_of(address >> kRankAt) + there, four, 16);
}
inline void show_barriers() {}
inline void cluster_meet() { emulated::meet_cluster(); }

inline uint32_t least_halves(uint32_t a, uint32_t b) {
  return std::min(a >> 16, b >> 16) << 16 | std::min(a & 0xffff, b & 0xffff);
}
inline uint32_t equal_halves(uint32_t a, uint32_t b) {
  const auto same = [](uint32_t x, uint32_t y) {
    return emulated::widened<__half>(uint16_t(x)) == emulated::widened<__half>(uint16_t(y));
  };
  return (same(a >> 16, b >> 16) ? 0xffff0000u : 0) | (same(a, b) ? 0xffffu : 0);
}

inline void arrive_for_bytes(uint32_t barrier, uint32_t bytes) {
  emulated::phase_barrier(barrier).bytes += int32_t(bytes);
  arrive(barrier);
}
inline uint64_t drop_first() { return 0; }
inline void copy_in(uint32_t to, const CUtensorMap& from, int row, int column, uint32_t barrier,
                    uint64_t = 0) {
  emulated::copy_box_in(to, from, {column, row}, barrier);
}
inline void copy_in_steps(uint32_t to, const CUtensorMap& from, int row, int column,
                          uint32_t barrier) {
  emulated::copy_box_in(to, from, {column, row}, barrier);
}
inline void copy_out(const CUtensorMap& to, int row, int column, uint32_t from, uint64_t = 0) {
  const emulated::TensorMap map = emulated::tensor_map_of(to);
  emulated::for_chunks(map, {column, row}, from, [](uint32_t tile, std::byte* chunk) {
    if (chunk) std::memcpy(chunk, emulated::shared_at(tile), emulated::kChunk * 2);
  });
}
inline void end_copies_out() {}
template <int kPending>
void wait_for_copies_out() {}

}  // namespace snug::cuda
