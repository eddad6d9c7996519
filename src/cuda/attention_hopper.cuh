// What the attention kernels for Hopper (sm_90a) share: products of tiles, quicker draws.
#pragma once

#include "cuda/attention_common.cuh"
#include "cuda/hopper.cuh"

namespace snug::cuda::attention_kernels {

inline constexpr int kHopperDim = 64;  // the head size of these kernels

#if SNUG_HOPPER

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
__device__ __forceinline__ void multiply_packed(Accumulator& d, const uint32_t (&a)[8][2],
                                                uint32_t b_tile, int add) {
  const uint64_t b = tile_descriptor(b_tile);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    group_multiply<T, 1>(d, a[2 * step][0], a[2 * step][1], a[2 * step + 1][0], a[2 * step + 1][1],
                         b + uint64_t(step) * kAcrossRows, step > 0 ? 1 : add);
  }
}

#endif  // SNUG_HOPPER

// Philox in parts. Most of its first three rounds depends on the query alone or on the block of
// keys alone.
struct DrawRow {
  uint32_t high, low;
};
struct DrawBlock {
  uint32_t low0, low1, high2, low2;
};

template <class T>
__device__ __forceinline__ DrawRow draw_row(const Arguments<T>& a, const Place& place, int query) {
  const uint32_t first =
      __umulhi(kPhiloxMul1, uint32_t(place.sample)) ^ uint32_t(query) ^ a.keys.keys[0][0];
  const uint64_t p = uint64_t{kPhiloxMul0} * first;
  return {uint32_t(p >> 32), uint32_t(p)};
}
// What they have in common: of the sample.
struct DrawStem {
  uint32_t first, second;
};
template <class T>
__device__ __forceinline__ DrawStem draw_stem(const Arguments<T>& a, const Place& place) {
  return {mask_counter(a.mask, {place.sample}, 0)[3] ^ a.keys.keys[0][1],
          kPhiloxMul1 * uint32_t(place.sample) ^ a.keys.keys[1][0]};
}
__device__ __forceinline__ DrawBlock draw_block(const DrawStem& stem, int head, int block) {
  const uint64_t p0 = uint64_t{kPhiloxMul0} * (uint32_t(head) << 16 | uint32_t(block));
  const uint64_t p1 = uint64_t{kPhiloxMul1} * (uint32_t(p0 >> 32) ^ stem.first);
  const uint64_t p2 = uint64_t{kPhiloxMul0} * (uint32_t(p1 >> 32) ^ stem.second);
  return {uint32_t(p0), uint32_t(p1), uint32_t(p2 >> 32), uint32_t(p2)};
}
template <class T>
__device__ __forceinline__ DrawBlock draw_block(const Arguments<T>& a, const Place& place,
                                                int block) {
  return draw_block(draw_stem(a, place), place.head, block);
}
// The same words as draws_of().
template <class T>
__device__ __forceinline__ std::array<uint32_t, 4> draws_of(const Arguments<T>& a,
                                                            const DrawRow& row,
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

// Compares both draws of a word with the threshold. The top bits of the halves say whether the
// elements are kept; other bits mean nothing.
inline constexpr uint32_t kTops = 0x80008000u;
__device__ __forceinline__ uint32_t kept_tops(const KeepWords& keep, uint32_t word) {
  const uint32_t difference = (word | kTops) - keep.rest;  // never borrows from the other half
  return (word & difference) | ((word | difference) & keep.either);
}
// Halves of ones where kept, of zeros where not.
__device__ __forceinline__ uint32_t kept_halves(const KeepWords& keep, uint32_t word) {
  return spread_tops(kept_tops(keep, word));
}
// The same by comparing halves as fp16 numbers, for thresholds up to infinity's bits: no two of
// these are equal.
inline constexpr uint32_t kMostCompared = 0x7c00u;
#if SNUG_HOPPER
__device__ __forceinline__ uint32_t kept_halves(uint32_t threshold_twice, uint32_t word) {
  return equal_halves(least_halves(word, threshold_twice), threshold_twice);
}
#endif

// False: not for this device, this head size or these lengths; nothing was started.
template <class T>
bool launch_hopper_forward(Arguments<T> a, const Launch& call);
// This one may also add dqkv's sums over rows to `sums`, where it is not null.
enum class Started : uint8_t { kNot, kWithoutSums, kWithSums };
template <class T>
Started launch_hopper_backward(const Arguments<T>& a, float* sums, const Launch& call);

}  // namespace snug::cuda::attention_kernels
