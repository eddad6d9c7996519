// What the attention kernels share: their arguments, copies to tiles in shared memory, tensor core
// products and dropout draws.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cuda/check.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "cuda/tiles.cuh"
#include "ops/attention.h"
#include "ops/dropout_mask.h"

namespace snug::cuda::attention_kernels {

// Philox adds constants to its key from round to round. Kernels get all keys as arguments, where
// they are operands.
struct RoundKeys {
  uint32_t keys[kMaskRounds][2];
};

// The mask's threshold for comparing two draws at once.
struct KeepWords {
  uint32_t rest;    // the threshold without its top bit, in both halves
  uint32_t either;  // all ones where the threshold's top bit is not set: then a draw's top bit
                    // alone is enough
};

template <class T>
struct Arguments {
  const T* qkv;     // [tokens, 3 * heads * head_dim]
  T* o;             // [tokens, heads * head_dim], read by backward
  float* lse;       // [tokens, heads]; in forward null where nobody wants it
  const T* d_o;     // [tokens, heads * head_dim], backward only
  T* dqkv;          // [tokens, 3 * heads * head_dim], backward only
  float* row_sums;  // [tokens, heads]: o · do, backward only
  float* pieces;  // [pieces, 3 * heads * head_dim]: parts of dqkv's sums over rows; null where not
                  // wanted
  const int32_t* starts;
  const uint64_t* samples;  // null when dropout is off
  const StepState* state;
  int64_t tokens;  // rows of the tensors
  int heads, head_dim;
  int tiles;    // of a sequence, in the grid
  int longest;  // room for the queries of a sequence, in whole tiles
  bool causal;
  float scale;  // 1 / sqrt(head_dim)
  DropoutMask mask;
  RoundKeys keys;  // of the mask
  KeepWords keep;
};

// The sequence, head and tile a block works on. Heads are in the grid's second dimension, tiles of
// sequences in its first, which alone may be large.
struct Place {
  int start, length;  // tokens
  int sequence, head, tile;
  uint64_t sample;
};

// Of a block in a grid of [tiles of all sequences, heads]. All heads of a sequence come side by
// side, so that what runs at the same time reads whole rows, and the last sequences first, see
// from_the_end().
template <class T>
__device__ __forceinline__ Place place_of(const Arguments<T>& a) {
  const int block = int(blockIdx.y * gridDim.x + blockIdx.x), of_sequence = a.tiles * a.heads;
  Place place;
  place.sequence = from_the_end(int(gridDim.x) / a.tiles, block / of_sequence);
  place.head = block / a.tiles % a.heads;
  place.tile = block % a.tiles;
  place.start = a.starts[place.sequence];
  place.length = a.starts[place.sequence + 1] - place.start;
  place.sample = a.mask.on() ? a.samples[place.sequence] : 0;
  return place;
}

// All blocks together write zeros into the rows behind the real tokens.
template <class Element>
__device__ __forceinline__ void zero_padding(Element* data, int64_t columns, int64_t real_rows,
                                             int64_t rows) {
  const int64_t threads = int64_t(gridDim.x) * gridDim.y * blockDim.x;
  const int64_t thread = (int64_t(blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = real_rows * columns + thread; i < rows * columns; i += threads) {
    data[i] = Element{};
  }
}

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Row r of the tile := row first + source_of(r) of a sequence's matrix, zeros from row `end` on.
// source_of moves bits of a row's number, so that the sources of a + b are those of a and of b
// where they share no bits. `thread` is one of the kThreads that share the work.
template <int kWidth, int kRows, int kThreads, class T, class SourceOf>
__device__ __forceinline__ void copy_tile(uint32_t tile, const T* from, int stride, int first,
                                          int end, SourceOf source_of, int thread) {
  constexpr int kChunks = kWidth / 8, kRowsAtOnce = kThreads / kChunks;
  if constexpr (kThreads % kChunks == 0 && (kRowsAtOnce & (kRowsAtOnce - 1)) == 0 &&
                kRowsAtOnce >= 8 && kRows % kRowsAtOnce == 0) {
    // All of a thread's rows are a constant distance from its first one.
    const int row = thread / kChunks, chunk = thread % kChunks;
    const int source = first + source_of(row);
    const uint32_t to = tile + chunk_offset<kWidth>(row, chunk);
    const T* const here = from + int64_t(source) * stride + chunk * 8;
#pragma unroll
    for (int more = 0; more < kRows; more += kRowsAtOnce) {
      copy_chunk(to + more * kChunks * 16, here + source_of(more) * stride,
                 source + source_of(more) < end);
    }
  } else {
    for (int i = thread; i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks, source = first + source_of(row);
      copy_chunk(tile + chunk_offset<kWidth>(row, chunk),
                 from + int64_t(source) * stride + chunk * 8, source < end);
    }
  }
}
template <int kWidth, int kRows, int kThreads, class T, class SourceOf>
__device__ __forceinline__ void copy_tile(uint32_t tile, const T* from, int stride, int first,
                                          int end, SourceOf source_of) {
  copy_tile<kWidth, kRows, kThreads>(tile, from, stride, first, end, source_of, int(threadIdx.x));
}

struct SameRow {
  __device__ __forceinline__ int operator()(int row) const { return row; }
};

// Dropout.

// What philox() of the mask's counter gives: the eight draws of a query and eight keys.
template <class T>
__device__ __forceinline__ std::array<uint32_t, 4> draws_of(const Arguments<T>& a,
                                                            const Place& place, int query,
                                                            int block) {
  std::array<uint32_t, 4> c =
      mask_counter(a.mask, {place.sample, uint32_t(query), uint32_t(place.head)}, uint32_t(block));
#pragma unroll
  for (int round = 0; round < kMaskRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMul0} * c[0], p1 = uint64_t{kPhiloxMul1} * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ a.keys.keys[round][0], uint32_t(p1),
         uint32_t(p0 >> 32) ^ c[3] ^ a.keys.keys[round][1], uint32_t(p0)};
  }
  return c;
}
// The two draws of a word, compared in the high half: threshold << 16 needs no cut of the other
// half there.
__device__ __forceinline__ bool low_kept(uint32_t word, uint32_t high_threshold) {
  return word << 16 >= high_threshold;
}
__device__ __forceinline__ bool high_kept(uint32_t word, uint32_t high_threshold) {
  return word >= high_threshold;
}

// Forward and dq own columns of scores; of a group of 32 keys, lane 4g + t shall own the keys 8t to
// 8t + 7, which share one Philox call. Column c of the group is therefore this key; rows of tiles
// of k and v are stored in that order.
struct KeyOfColumn {
  __device__ __forceinline__ int operator()(int column) const {
    return (column & ~31) + (column >> 1 & 3) * 8 + (column >> 3 & 3) * 2 + (column & 1);
  }
};

// Where keys are rows of scores, row r of 16 is this key, so that lane 4g + t, which owns rows g
// and g + 8, has two neighbours whose draws are the halves of one word.
struct KeyOfRow {
  __device__ __forceinline__ int operator()(int row) const {
    return (row & ~15) + (row & 7) * 2 + (row >> 3 & 1);
  }
};

// Writes a row of an accumulator, as the lane's quad holds it: of blocks 2i and 2i + 1 the even
// lanes take the first and the odd ones the second, so that a quad writes 32 bytes at once. All
// lanes must come here; `there` says who writes.
template <class T, int kBlocks>
__device__ __forceinline__ void store_quad_row(T* row, const float (&acc)[kBlocks][4], int half,
                                               float factor, bool there) {
  const int t = int(threadIdx.x) % 4;
  const bool odd = t & 1;
#pragma unroll
  for (int block = 0; block < kBlocks; block += 2) {
    const uint32_t first =
        packed<T>(acc[block][2 * half] * factor, acc[block][2 * half + 1] * factor);
    const uint32_t second =
        packed<T>(acc[block + 1][2 * half] * factor, acc[block + 1][2 * half + 1] * factor);
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    if (there) {
      *reinterpret_cast<uint2*>(row + (block + odd) * 8 + t / 2 * 4) = {odd ? other : first,
                                                                        odd ? second : other};
    }
  }
}

// The sum or maximum over the four lanes that share a row of an accumulator.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// On the host.

template <class Kernel, class Argument>
void start(Kernel* kernel, dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
           const Argument& argument) {
  if (shared_bytes > 48 * 1024) {
    SNUG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   int(shared_bytes)));
  }
  kernel<<<grid, threads, shared_bytes, stream>>>(argument);
  SNUG_CUDA_LAUNCHED("attention");
}

inline int tiles_of(int64_t n, int tile) { return int((n + tile - 1) / tile); }

template <class T>
Arguments<T> arguments(const AttentionSpec& spec, const Launch& call) {
  Arguments<T> a = {};
  a.qkv = static_cast<const T*>(call.in[0].data);
  a.starts = call.batch->starts;
  a.samples = call.batch->samples;
  a.state = call.state;
  a.tokens = call.batch->dims.tokens;
  a.heads = int(spec.heads);
  a.head_dim = int(spec.head_dim);
  a.causal = spec.causal;
  a.scale = 1.0f / std::sqrt(float(spec.head_dim));
  a.mask = dropout_mask(spec.dropout, spec.site, *call.step);
  for (uint32_t round = 0; round < kMaskRounds; ++round) {
    a.keys.keys[round][0] = a.mask.key[0] + round * kPhiloxWeyl0;
    a.keys.keys[round][1] = a.mask.key[1] + round * kPhiloxWeyl1;
  }
  a.keep = {(a.mask.threshold & 0x7fffu) * 0x10001u, a.mask.threshold < 0x8000u ? ~0u : 0u};
  return a;
}

// Any head size up to 256 and any type, without tensor cores.
template <class T>
void launch_general_forward(Arguments<T> a, const Launch& call);
template <class T>
void launch_general_backward(Arguments<T> a, const Launch& call);
// row_sums := o · do
template <class T>
void launch_row_sums(const Arguments<T>& a, cudaStream_t stream);

}  // namespace snug::cuda::attention_kernels
