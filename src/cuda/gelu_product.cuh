// The kernel behind gelu_product.h. Blocks stay and take tiles of the result in turn. One thread copies tiles of both
// factors to shared memory, some ahead of two warpgroups that multiply them, each for half of the rows.
//
// A tile is as large as the registers allow, since what limits these products is the way from the second-level cache
// to shared memory: 48 KB for 1024 cycles of the tensor cores. Complete sums are rounded to 16 bits, which is how a
// product without GELU stores them, and their registers go to the next tile. GELU is applied in pieces while the tensor
// cores work on that one.
#pragma once

#include "cuda/activation.cuh"
#include "cuda/hopper.cuh"
#include "cuda/tensor_copies.cuh"

namespace snug::cuda::gelu_kernels {

struct Arguments {
  CUtensorMap left;      // [rows, depth]
  CUtensorMap right;     // [cols, depth], or [depth, cols]
  CUtensorMap result;    // [rows, cols]
  CUtensorMap argument;  // of GELU, the same
  const void* bias;      // [cols], forward only; null: none
  float* sums;           // [pieces, cols], a piece for each warp's rows of a tile; for kinds with sums only
  bool keeps;            // whether a forward product writes the argument
  int rows, cols;
  int depth_steps;  // tiles of the inner dimension
  int tiles, column_tiles;
};

// What is done behind a product.
enum class Then { kGelu, kGradient, kGradientAndSums };

inline constexpr int kMathGroups = 2, kMathThreads = kMathGroups * kGroupThreads;
inline constexpr int kThreads = kMathThreads + kGroupThreads;
inline constexpr int kMathWarps = kMathThreads / kWarp, kGroupWarps = kGroupThreads / kWarp;
inline constexpr int kMathRegisters = 240, kCopyRegisters = 24;

inline constexpr int kGroupRows = 64, kTileRows = kMathGroups * kGroupRows, kTileColumns = 256;
inline constexpr int kWarpRows = kGroupRows / kGroupWarps;
inline constexpr int kDepth = 64, kChunk = 64;  // columns of a tile in shared memory
inline constexpr int kBlocks = kTileColumns / 8, kChunkBlocks = kChunk / 8, kChunks = kTileColumns / kChunk;
inline constexpr int kPieceBlocks = 4, kPieces = kBlocks / kPieceBlocks;  // of a warp's results

inline constexpr uint32_t kSideBytes = kDepth * kRowBytes;  // from one chunk of columns to the next, MN-major
inline constexpr uint32_t kLeftBytes = kTileRows * kRowBytes, kStageBytes = kLeftBytes + kTileColumns * kRowBytes;
inline constexpr uint32_t kWarpTile = kWarpRows * kRowBytes;  // a chunk of a warp's results
// Of a warp's: one chunk of arguments and one of results, or two of arguments that become results in their place.
inline constexpr uint32_t kStaging = 2 * kWarpTile;
inline constexpr int kStages = 4;
inline constexpr uint32_t kSharedBytes = kTileAlign + kMathWarps * kStaging + kStages * kStageBytes;
static_assert(kSharedBytes <= 227 * 1024 - 256, "with the barriers");

#if SNUG_HOPPER

struct Barriers {
  uint64_t full[kStages], empty[kStages];  // a stage
  uint64_t argument[kMathWarps][2];        // a chunk of arguments has come
};

struct Spot {
  int row, column;  // of the first element of a tile
};
// Columns change fastest: what runs at the same time shares its factors.
__device__ __forceinline__ Spot spot_of(const Arguments& a, int n) {
  return {n / a.column_tiles * kTileRows, n % a.column_tiles * kTileColumns};
}

// A place in the ring of stages.
struct Stage {
  int at = 0;
  uint32_t parity = 0;  // of the round

  __device__ __forceinline__ void next() {
    if (++at == kStages) at = 0, parity ^= 1;
  }
};

// Addresses in shared memory that all of a block's threads know.
struct Block {
  uint32_t base;                   // stages, then staging
  uint32_t full, empty, argument;  // barriers

  __device__ __forceinline__ uint32_t left(int stage) const { return base + uint32_t(stage) * kStageBytes; }
  __device__ __forceinline__ uint32_t right(int stage) const { return left(stage) + kLeftBytes; }
  __device__ __forceinline__ uint32_t staging(int math_warp) const {
    return base + kStages * kStageBytes + uint32_t(math_warp) * kStaging;
  }
};

// One thread's.
template <int kAcrossRight>
__device__ __forceinline__ void copy_factors(const Arguments& a, const Block& block) {
  Stage stage;
  for (int n = int(blockIdx.x); n < a.tiles; n += int(gridDim.x)) {
    const Spot spot = spot_of(a, n);
    for (int k = 0; k < a.depth_steps; ++k) {
      await(block.empty + stage.at * 8, stage.parity ^ 1);
      const uint32_t full = block.full + stage.at * 8, right = block.right(stage.at);
      arrive_for_bytes(full, kStageBytes);
      copy_in(block.left(stage.at), a.left, spot.row, k * kDepth, full);
      if constexpr (kAcrossRight) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          copy_in(right + chunk * kSideBytes, a.right, k * kDepth, spot.column + chunk * kChunk, full);
        }
      } else {
        copy_in(right, a.right, spot.column, k * kDepth, full);
      }
      stage.next();
    }
  }
}

template <class T, Activation kActivation, Then kThen, int kAcrossRight>
struct Math {
  static constexpr bool kGradient = kThen != Then::kGelu;

  const Arguments& a;
  const Block& block;
  const int group, warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const uint32_t staging = block.staging(warp);
  const QuarterRows<kChunk> quarters = QuarterRows<kChunk>(true);
  const uint64_t policy = drop_first();

  using Sums = float[kBlocks][4];
  using Rounded = uint32_t[kBlocks][2];  // two columns of a row each

  // The second warpgroup begins a tile when the first has done a step of it. So they do not round at the same time,
  // when the tensor cores would have nothing to do. With fewer steps than stages the first could be two tiles ahead.
  static constexpr int kLag = 1;  // the barrier

  __device__ __forceinline__ void run() const {
    const bool staggered = a.depth_steps >= kStages;
    Rounded rounded = {};
    Spot before = {a.rows, 0};  // there is none
    if constexpr (kGradient) request_arguments(before, 0);
    Stage stage;
    Spot spot = spot_of(a, int(blockIdx.x));
    for (int n = int(blockIdx.x); n < a.tiles; n += int(gridDim.x)) {
      Sums sums;
      __syncwarp();  // whole warps come to barriers
      if (staggered && group == 1) meet_at(kLag, kMathThreads);
      start_products(sums, stage, false);
      if constexpr (kGradient) announce_arguments(spot);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const bool more = piece + 1 < a.depth_steps;
        if (more) start_products(sums, stage, true);
        write_piece(piece, rounded, before, spot);
        if (more) await_products_before(stage);
        if (piece == 0 && staggered && group == 0) {
          __syncwarp();
          come_to(kLag, kMathThreads);
        }
      }
#pragma unroll 1
      for (int k = kPieces + 1; k < a.depth_steps; ++k) {
        start_products(sums, stage, true);
        await_products_before(stage);
      }
      before = spot;
      spot = spot_of(a, n + int(gridDim.x));
      round(sums, stage, rounded, before.column);
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) write_piece(piece, rounded, before, {a.rows, 0});
    if (lane == 0) wait_for_copies_out<0>();
  }

  __device__ __forceinline__ void start_products(Sums& sums, Stage& stage, bool add) const {
    await(block.full + stage.at * 8, stage.parity);
    __syncwarp();  // products are started by whole warps
    before_products();
    const uint64_t left = tile_descriptor(block.left(stage.at) + group * kGroupRows * kRowBytes);
    const uint64_t right = tile_descriptor(block.right(stage.at), kAcrossRight ? kSideBytes : 16);
#pragma unroll
    for (uint64_t step = 0; step < kDepth / 16; ++step) {
      group_multiply<T, 0, kAcrossRight>(sums, left + step * kAlongRows,
                                         right + step * (kAcrossRight ? kAcrossRows : kAlongRows), add || step > 0);
    }
    end_products();
    stage.next();
  }
  // Those before the ones that started last. `stage` is the one behind those.
  __device__ __forceinline__ void await_products_before(const Stage& stage) const {
    __syncwarp();
    wait_for_products<1>();
    leave(stage, 2);
  }
  // This warp has read the stage so many before this one.
  __device__ __forceinline__ void leave(const Stage& stage, int back) const {
    if (lane == 0) arrive(block.empty + (stage.at + kStages - back) % kStages * 8);
  }

  // The results of the last products, with the bias.
  __device__ __forceinline__ void round(Sums& sums, const Stage& stage, Rounded& rounded, int column) const {
    uint32_t bias[kBlocks] = {};
    if (!kGradient && a.bias) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int at = column + b * 8;
        if (at < a.cols) bias[b] = static_cast<const uint32_t*>(a.bias)[at / 2 + lane % 4];
      }
    }
    wait_for_products<0>();
    leave(stage, 1);
    pin(sums);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (!kGradient) {
        const float2 add = unpacked<T>(bias[b]);
        sums[b][0] += add.x, sums[b][1] += add.y;
        sums[b][2] += add.x, sums[b][3] += add.y;
      }
      rounded[b][0] = packed<T>(sums[b][0], sums[b][1]);
      rounded[b][1] = packed<T>(sums[b][2], sums[b][3]);
    }
  }

  // `next` is the tile behind this one, if there is one.
  __device__ __forceinline__ void write_piece(int piece, Rounded& rounded, const Spot& spot, const Spot& next) const {
    const int first = piece * kPieceBlocks, within = first % kChunkBlocks, chunk = first / kChunkBlocks;
    const int row = row_of(spot), column = spot.column + chunk * kChunk;
    const bool last = within + kPieceBlocks == kChunkBlocks;
#pragma unroll
    for (int b = 0; b < kPieceBlocks; ++b) pin(rounded[first + b]);  // the products have started before this
    if constexpr (kGradient) {
      const uint32_t tile = staging + chunk % 2 * kWarpTile;
      if (within == 0) {
        if (lane == 0) wait_for_copies_out<0>();
        if (chunk + 1 < kChunks) {
          request_arguments(spot, chunk + 1);
        } else if (next.row < a.rows) {
          request_arguments(next, 0);
        }
        await(argument_barrier(chunk), chunk / 2);
        __syncwarp();
      }
      multiply_by_slopes(rounded, first, tile, within, row, spot.column + first * 8);
      if (last) send(row, column, tile);
    } else {
      if (within == 0) {
        if (lane == 0) wait_for_copies_out<0>();
        __syncwarp();
      }
      apply(rounded, first, within);
      if (last) send(row, column, staging + kWarpTile);
    }
  }
  // A chunk of results, and what they are results of.
  __device__ __forceinline__ void send(int row, int column, uint32_t tile) const {
    show_to_products();
    __syncwarp();
    if (lane == 0) {
      if (row < a.rows && column < a.cols) {
        if (!kGradient && a.keeps) copy_out(a.argument, row, column, staging, policy);
        copy_out(a.result, row, column, tile);
      }
      end_copies_out();
    }
  }

  // Arguments to the first chunk of staging, results to the second.
  __device__ __forceinline__ void apply(const Rounded& rounded, int first, int within) const {
#pragma unroll
    for (int b = 0; b < kPieceBlocks; b += 2) {
      uint32_t x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = rounded[first + b + i / 2][i % 2];
        const float2 pair = unpacked<T>(x[i]);
        y[i] = packed<T>(activate<kActivation>(pair.x), activate<kActivation>(pair.y));
      }
      const uint32_t at = quarters.at(staging, 0, within + b);
      if (a.keeps) store_matrices(at, x[0], x[1], x[2], x[3]);
      store_matrices(at + kWarpTile, y[0], y[1], y[2], y[3]);
    }
  }

  __device__ __forceinline__ uint32_t argument_barrier(int chunk) const {
    return block.argument + uint32_t(warp * 2 + chunk % 2) * 8;
  }
  // A tile's will be wanted: they come to the second-level cache.
  __device__ __forceinline__ void announce_arguments(const Spot& spot) const {
    if (lane != 0) return;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      copy_to_cache(a.argument, row_of(spot), spot.column + chunk * kChunk);
    }
  }
  // They come to where the results will be.
  __device__ __forceinline__ void request_arguments(const Spot& spot, int chunk) const {
    if (lane != 0) return;
    arrive_for_bytes(argument_barrier(chunk), kWarpTile);
    copy_in(staging + chunk % 2 * kWarpTile, a.argument, row_of(spot), spot.column + chunk * kChunk,
            argument_barrier(chunk), policy);
  }
  __device__ __forceinline__ void multiply_by_slopes(const Rounded& rounded, int first, uint32_t tile, int within,
                                                     int row, int column) const {
    float sums[2 * kPieceBlocks] = {};
#pragma unroll
    for (int b = 0; b < kPieceBlocks; b += 2) {
      const uint32_t at = quarters.at(tile, 0, within + b);
      uint32_t words[4];
      load_matrices(words, at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpacked<T>(words[i]), dy = unpacked<T>(rounded[first + b + i / 2][i % 2]);
        const float2 dx = {dy.x * slope<kActivation>(x.x), dy.y * slope<kActivation>(x.y)};
        words[i] = packed<T>(dx.x, dx.y);
        sums[2 * (b + i / 2)] += dx.x;
        sums[2 * (b + i / 2) + 1] += dx.y;
      }
      store_matrices(at, words[0], words[1], words[2], words[3]);
    }
    if constexpr (kThen == Then::kGradientAndSums) write_sums(sums, row, column);
  }
  // Over the eight lanes that share columns: in each step a lane gives half of what it has away, and has one sum in the
  // end.
  __device__ __forceinline__ void write_sums(float (&sums)[2 * kPieceBlocks], int row, int column) const {
#pragma unroll
    for (int half = kPieceBlocks; half > 0; half /= 2) {
      const bool upper = lane / 4 & half;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float keep = upper ? sums[half + i] : sums[i], give = upper ? sums[i] : sums[half + i];
        sums[i] = keep + __shfl_xor_sync(0xffffffffu, give, half * 4);
      }
    }
    const int own = column + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
    if (row < a.rows && own < a.cols) a.sums[int64_t(row / kWarpRows) * a.cols + own] = sums[0];
  }

  // This warp's first row.
  __device__ __forceinline__ int row_of(const Spot& spot) const { return spot.row + warp * kWarpRows; }
};

#endif  // SNUG_HOPPER

template <class T, Activation kActivation, Then kThen, int kAcrossRight>
__global__ void __launch_bounds__(kThreads, 1) gelu_product_kernel(const __grid_constant__ Arguments a) {
#if SNUG_HOPPER
  __shared__ Barriers barriers;
  extern __shared__ unsigned char shared_bytes[];
  const Block block = {(shared_address(shared_bytes) + kTileAlign - 1) / kTileAlign * kTileAlign,
                       shared_address(barriers.full), shared_address(barriers.empty),
                       shared_address(barriers.argument)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(block.full + i * 8, 1);
      init_barrier(block.empty + i * 8, kMathWarps);
    }
    for (int i = 0; i < kMathWarps * 2; ++i) init_barrier(block.argument + i * 8, 1);
    show_barriers();
  }
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, int(threadIdx.x) / kGroupThreads, 0);
  if (group == kMathGroups) {
    give_registers<kCopyRegisters>();
    if (threadIdx.x == kMathThreads) copy_factors<kAcrossRight>(a, block);
  } else {
    take_registers<kMathRegisters>();
    Math<T, kActivation, kThen, kAcrossRight>{a, block, group}.run();
  }
#endif
}

}  // namespace snug::cuda::gelu_kernels
