// The kernel behind gelu_product.h. Blocks stay and take tiles of the result in turn. One warp
// copies tiles of both factors to shared memory, some ahead of two warpgroups that multiply them.
// The warpgroups alternate: while one applies GELU to its tile and writes it, the tensor cores work
// for the other.
//
// Tiles have 128 rows, or 192 where there are rows enough: the larger ones take fewer bytes through
// shared memory, which the smaller ones keep busy more than the tensor cores.
//
// Measured on an H200: 128 x 192 is as fast as 192 x 128; slower are tiles of 64 x 256 and 128 x
// 256, clusters that share tiles of the left factor or of the right one, and walking several rows
// of tiles together.
#pragma once

#include "cuda/activation.cuh"
#include "cuda/hopper.cuh"
#include "cuda/tensor_copies.cuh"

namespace snug::cuda::gelu_kernels {

struct Arguments {
  CUtensorMap left;      // [rows, depth]
  CUtensorMap right;     // [cols, depth], or [depth, cols]
  CUtensorMap result;    // [rows, cols]
  CUtensorMap argument;  // of GELU, or the slope there, the same; bytes in pairs: [rows, cols / 2]
  const void* bias;      // [cols], forward only; null: none
  float* sums;  // [pieces, cols], a piece for each warp's rows of a tile; gradient only; null: not
                // wanted
  bool keeps;   // whether a forward product writes the argument or the slope
  int rows, cols;
  int depth_steps;  // tiles of the inner dimension
  int row_tiles, column_tiles;
};

inline constexpr int kMathGroups = 2, kMathThreads = kMathGroups * kGroupThreads,
                     kThreads = kMathThreads + kGroupThreads;
inline constexpr int kMathWarps = kMathThreads / kWarp, kGroupWarps = kGroupThreads / kWarp;
inline constexpr int kDepth = 64, kChunk = 64;  // columns of a tile in shared memory
inline constexpr int kMathRegisters = 240, kCopyRegisters = 24;
inline constexpr uint32_t kMostShared = 227 * 1024 - 256;  // less the barriers
// 16 rows and kChunk columns of the result: a warp's.
inline constexpr uint32_t kWarpTile = 16 * kRowBytes;
// From one chunk of columns to the next, MN-major.
inline constexpr uint32_t kSideBytes = kDepth * kRowBytes;

enum class Role { kForward, kForwardWithSlope, kGradient };

inline constexpr int kRowBlock = 64;  // rows of one product of a warpgroup
inline constexpr int kColumns = 128;  // of a tile of the result

template <Role kTileRole, int kBlocksOfRows>
struct Tile {
  static constexpr Role kRole = kTileRole;
  static constexpr bool kGradient = kRole == Role::kGradient;
  static constexpr int kRowBlocks = kBlocksOfRows, kRows = kRowBlocks * kRowBlock;
  static constexpr int kBlocks = kColumns / 8, kChunks = kColumns / kChunk;
  static constexpr uint32_t kLeftBytes = kRows * kRowBytes,
                            kStageBytes = kLeftBytes + kColumns * kRowBytes;
  // Of a warp's results on their way: all of them where the argument comes in the same place, or
  // else two chunks of argument and result.
  static constexpr uint32_t kStaging = (kGradient ? kRowBlocks * kChunks : 4) * kWarpTile;
  static constexpr int kStages =
      int((kMostShared - kTileAlign - kMathWarps * kStaging) / kStageBytes);
  static constexpr uint32_t kSharedBytes =
      kTileAlign + kMathWarps * kStaging + kStages * kStageBytes;
  static_assert(kRowBlocks * kChunks % 2 == 0 && kStages >= 3);
};

#if SNUG_HOPPER

template <class Tile>
struct Barriers {
  uint64_t full[Tile::kStages], empty[Tile::kStages];  // a stage
  uint64_t argument[kMathWarps];                       // the arguments of a warp's tile have come
};

struct Spot {
  int row, column;  // of the first element of a tile
};
// Where the n-th tile is. Columns change fastest: what runs at the same time shares the rows of the
// left factor. The last rows come first, see from_the_end().
template <class Tile>
__device__ __forceinline__ Spot spot_of(const Arguments& a, int n) {
  return {from_the_end(a.row_tiles, n / a.column_tiles) * Tile::kRows,
          n % a.column_tiles * kColumns};
}

// A place in the ring of stages.
template <class Tile>
struct Stage {
  int at;
  uint32_t parity;  // of the round

  __device__ __forceinline__ explicit Stage(int turn)
      : at(turn % Tile::kStages), parity(turn / Tile::kStages & 1) {}
  __device__ __forceinline__ void next() {
    if (++at == Tile::kStages) at = 0, parity ^= 1;
  }
};

// What all of a block's threads know.
template <class Tile>
struct Block {
  int first, step, tiles;          // it takes first, first + step, ... of so many
  uint32_t base;                   // of shared memory: stages, then staging
  uint32_t full, empty, argument;  // barriers

  __device__ __forceinline__ uint32_t left(int stage) const {
    return base + uint32_t(stage) * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t right(int stage) const {
    return left(stage) + Tile::kLeftBytes;
  }
  __device__ __forceinline__ uint32_t staging(int math_warp) const {
    return base + Tile::kStages * Tile::kStageBytes + uint32_t(math_warp) * Tile::kStaging;
  }
};

// One thread's.
template <int kAcrossRight, class Tile>
__device__ __forceinline__ void copy_factors(const Arguments& a, const Block<Tile>& block) {
  Stage<Tile> stage(0);
  for (int n = block.first; n < block.tiles; n += block.step) {
    const Spot spot = spot_of<Tile>(a, n);
    for (int k = 0; k < a.depth_steps; ++k) {
      await(block.empty + stage.at * 8, stage.parity ^ 1);
      const uint32_t full = block.full + stage.at * 8, right = block.right(stage.at);
      arrive_for_bytes(full, Tile::kStageBytes);
      copy_in(block.left(stage.at), a.left, spot.row, k * kDepth, full);
      if constexpr (kAcrossRight) {
#pragma unroll
        for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
          copy_in(right + chunk * kSideBytes, a.right, k * kDepth, spot.column + chunk * kChunk,
                  full);
        }
      } else {
        copy_in(right, a.right, spot.column, k * kDepth, full);
      }
      stage.next();
    }
  }
}

template <class T, Activation kActivation, class Tile, int kAcrossRight>
struct Math {
  static constexpr bool kGradient = Tile::kGradient,
                        kSlope = Tile::kRole == Role::kForwardWithSlope;
  // Slopes as bytes: those of 128 columns fill the rows of a tile in shared memory.
  static constexpr bool kBytes =
      kSlopesAreBytes<T> && (kSlope || kActivation == Activation::kKeptSlope);
  static_assert(!kBytes || Tile::kChunks == 2);

  const Arguments& a;
  const Block<Tile>& block;
  const int group, warp = int(threadIdx.x) % kGroupThreads / kWarp, lane = int(threadIdx.x) % kWarp;
  const uint32_t staging = block.staging(group * kGroupWarps + warp);
  const uint32_t argument_barrier = block.argument + (group * kGroupWarps + warp) * 8;
  const QuarterRows<kChunk> quarters = QuarterRows<kChunk>(true);
  const uint64_t policy = drop_first();

  using Accumulators = float[Tile::kRowBlocks][Tile::kBlocks][4];
  using Bias = uint32_t[kChunk / 8];  // of a chunk: this lane's two columns of each block

  // A barrier for each warpgroup: it may start products. Whole warps come there.
  __device__ __forceinline__ static void await_turn(int group) {
    __syncwarp();
    meet_at(1 + group, kMathThreads);
  }
  __device__ __forceinline__ static void give_turn(int group) {
    __syncwarp();
    come_to(1 + group, kMathThreads);
  }

  __device__ __forceinline__ void run() const {
    if (group == 1) give_turn(0);
    uint32_t parity = 0;  // of the arguments' barrier
    int turn = group;
    for (int n = block.first + group * block.step; n < block.tiles; n += kMathGroups * block.step) {
      const Spot spot = spot_of<Tile>(a, n);
      Bias bias;
      if constexpr (kGradient) {
        request_arguments(spot);
      } else {
        load_bias(bias, spot.column);
      }
      Accumulators acc;
      await_turn(group);
      multiply(acc, turn * a.depth_steps, n + block.step < block.tiles);
      if constexpr (kGradient) {
        await(argument_barrier, parity);
        write_gradient(acc, spot);
      } else {
        write_forward(acc, bias, spot);
      }
      parity ^= 1;
      turn += kMathGroups;
    }
    if (lane == 0) wait_for_copies_out<0>();
  }

  __device__ __forceinline__ void multiply(Accumulators& acc, int first_turn, bool another) const {
    constexpr uint64_t kLeftBlock = kRowBlock * kRowBytes / 16;
    Stage<Tile> stage(first_turn);
    int before = 0;
    for (int k = 0; k < a.depth_steps; ++k) {
      await(block.full + stage.at * 8, stage.parity);
      before_products();
      const uint64_t left = tile_descriptor(block.left(stage.at));
      const uint64_t right = tile_descriptor(block.right(stage.at), kAcrossRight ? kSideBytes : 16);
#pragma unroll
      for (uint64_t step = 0; step < kDepth / 16; ++step) {
#pragma unroll
        for (int rows = 0; rows < Tile::kRowBlocks; ++rows) {
          group_multiply<T, 0, kAcrossRight>(
              acc[rows], left + rows * kLeftBlock + step * kAlongRows,
              right + step * (kAcrossRight ? kAcrossRows : kAlongRows), k > 0 || step > 0);
        }
      }
      end_products();
      wait_for_products<1>();
      if (k > 0) leave(before);
      before = stage.at;
      stage.next();
    }
    if (another) give_turn(group ^ 1);
    wait_for_products<0>();
    leave(before);
#pragma unroll
    for (auto& rows : acc) pin(rows);
  }
  // This warp has read the stage.
  __device__ __forceinline__ void leave(int stage) const {
    if (lane == 0) arrive(block.empty + stage * 8);
  }

  __device__ __forceinline__ void load_bias(Bias& bias, int column) const {
#pragma unroll
    for (int b = 0; b < kChunk / 8; ++b, column += 8) {
      bias[b] = a.bias && column < a.cols
                    ? static_cast<const uint32_t*>(a.bias)[column / 2 + lane % 4]
                    : 0;
    }
  }
  // Tiles of argument and result alternate, two of each. One of slopes as bytes is filled by all
  // chunks of its rows.
  __device__ __forceinline__ void write_forward(const Accumulators& acc, Bias& bias,
                                                const Spot& spot) const {
    constexpr int kTurns = Tile::kRowBlocks * Tile::kChunks;
    if (kBytes && lane == 0) wait_for_copies_out<0>();  // an odd number of theirs came before
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int rows = turn / Tile::kChunks, chunk = turn % Tile::kChunks;
      Bias next;
      if (turn + 1 < kTurns) load_bias(next, spot.column + (turn + 1) % Tile::kChunks * kChunk);
      write_chunk(acc[rows], chunk, bias, staging + (kBytes ? rows : turn) % 2 * 2 * kWarpTile,
                  staging + (turn % 2 * 2 + 1) * kWarpTile, row_of(spot, rows), spot.column);
      if (turn + 1 < kTurns) memcpy(bias, next, sizeof(bias));
    }
  }
  // The argument or the slope to `kept_tile`, the result to `tile`. column: of the first chunk
  __device__ __forceinline__ void write_chunk(const float (&acc)[Tile::kBlocks][4], int chunk,
                                              const Bias& bias, uint32_t kept_tile, uint32_t tile,
                                              int row, int column) const {
    if (lane == 0) wait_for_copies_out<1>();
    __syncwarp();
    uint32_t bytes[4];  // each for 16 columns of rows 0-7 or of rows 8-15
#pragma unroll
    for (int pair = 0; pair < kChunk / 8; pair += 2) {
      uint32_t pre[4], y[4];  // rows 0-7 of the first block, 8-15, and both of the second
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 slopes[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* const sums = acc[chunk * (kChunk / 8) + pair + i] + half * 2;
          const float2 add = unpacked<T>(bias[pair + i]);
          uint32_t& argument = pre[2 * i + half];
          argument = packed<T>(sums[0] + add.x, sums[1] + add.y);
          const float2 x = unpacked<T>(argument);
          const Bent first = gelu<kActivation, T>(x.x), second = gelu<kActivation, T>(x.y);
          y[2 * i + half] = packed<T>(first.value, second.value);
          slopes[i] = {first.slope, second.slope};
          if constexpr (kSlope && !kBytes) argument = packed<T>(first.slope, second.slope);
        }
        if constexpr (kBytes) bytes[pair % 4 + half] = slope_bytes(slopes[0], slopes[1]);
      }
      store_matrices(quarters.at(tile, 0, pair), y[0], y[1], y[2], y[3]);
      if constexpr (!kBytes) {
        if (a.keeps) {
          store_matrices(quarters.at(kept_tile, 0, pair), pre[0], pre[1], pre[2], pre[3]);
        }
      } else if (pair % 4 == 2) {
        store_matrices(quarters.at(kept_tile, 0, chunk * 4 + pair / 4 * 2), bytes[0], bytes[1],
                       bytes[2], bytes[3]);
      }
    }
    show_to_products();
    __syncwarp();
    if (lane == 0) {
      const int own_column = column + chunk * kChunk;
      const bool here = row < a.rows && own_column < a.cols;
      if constexpr (kBytes) {
        if (row < a.rows && chunk + 1 == Tile::kChunks) {
          copy_out(a.argument, row, column / 2, kept_tile, policy);
        }
      } else if (a.keeps && here) {
        copy_out(a.argument, row, own_column, kept_tile, policy);
      }
      if (here) copy_out(a.result, row, own_column, tile);
      end_copies_out();
    }
  }

  // The arguments come to where the results will be, and wait there until the products are done.
  // Bytes come to where those of the second chunk will be.
  __device__ __forceinline__ void request_arguments(const Spot& spot) const {
    if (lane != 0) return;
    wait_for_copies_out<0>();
    arrive_for_bytes(argument_barrier, kBytes ? Tile::kStaging / 2 : Tile::kStaging);
#pragma unroll
    for (int rows = 0; rows < Tile::kRowBlocks; ++rows) {
#pragma unroll
      for (int chunk = 0; chunk < (kBytes ? 1 : Tile::kChunks); ++chunk) {
        copy_in(argument_tile(rows, chunk), a.argument, row_of(spot, rows),
                kBytes ? spot.column / 2 : spot.column + chunk * kChunk, argument_barrier, policy);
      }
    }
  }
  __device__ __forceinline__ uint32_t argument_tile(int rows, int chunk) const {
    return staging + (rows * Tile::kChunks + (kBytes ? 0 : chunk)) * kWarpTile;
  }
  __device__ __forceinline__ uint32_t result_tile(int rows, int chunk) const {
    return staging +
           (rows * Tile::kChunks + (kBytes ? Tile::kChunks - 1 - chunk : chunk)) * kWarpTile;
  }
  __device__ __forceinline__ static float2 slopes_of(uint32_t bytes, int block) {
    return {slope_of_byte(bytes, block * 2), slope_of_byte(bytes, block * 2 + 1)};
  }
  __device__ __forceinline__ static float2 slopes_of(uint32_t arguments) {
    const float2 x = unpacked<T>(arguments);
    return {slope<kActivation, T>(x.x), slope<kActivation, T>(x.y)};
  }
  __device__ __forceinline__ void write_gradient(const Accumulators& acc, const Spot& spot) const {
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      const int column = spot.column + chunk * kChunk;
      float sums[kChunk / 4] = {};
#pragma unroll
      for (int rows = 0; rows < Tile::kRowBlocks; ++rows) {
        const uint32_t tile = result_tile(rows, chunk);
        uint32_t bytes[4];  // each for 16 columns of rows 0-7 or of rows 8-15
#pragma unroll
        for (int pair = 0; pair < kChunk / 8; pair += 2) {
          uint32_t words[4];
          if constexpr (!kBytes) {
            load_matrices(words, quarters.at(tile, 0, pair));
          } else if (pair % 4 == 0) {
            // Results come there later, and to these columns last.
            load_matrices(bytes, quarters.at(argument_tile(rows, chunk), 0, chunk * 4 + pair / 2));
            __syncwarp();
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int b = pair + i / 2, half = i % 2 * 2;
            const float* const products = acc[rows][chunk * (kChunk / 8) + b] + half;
            const float2 slopes =
                kBytes ? slopes_of(bytes[pair % 4 + i % 2], i / 2) : slopes_of(words[i]);
            const float first = products[0] * slopes.x, second = products[1] * slopes.y;
            sums[2 * b] += first;
            sums[2 * b + 1] += second;
            words[i] = packed<T>(first, second);
          }
          store_matrices(quarters.at(tile, 0, pair), words[0], words[1], words[2], words[3]);
        }
        show_to_products();
        __syncwarp();
        const int row = row_of(spot, rows);
        if (lane == 0 && row < a.rows && column < a.cols) copy_out(a.result, row, column, tile);
      }
      if (a.sums) write_sums(sums, spot, column);
    }
    if (lane == 0) end_copies_out();
  }
  __device__ __forceinline__ void write_sums(float (&sums)[kChunk / 4], const Spot& spot,
                                             int column) const {
    add_over_rows(sums);
    const int own = column + lane * 2;
    if (spot.row >= a.rows || own >= a.cols) return;
    const int piece = spot.row / Tile::kRows * kGroupWarps + warp;
    *reinterpret_cast<float2*>(a.sums + int64_t(piece) * a.cols + own) = {sums[0], sums[1]};
  }

  // The first row of this warp's in a block of 64.
  __device__ __forceinline__ int row_of(const Spot& spot, int rows) const {
    return spot.row + rows * kRowBlock + warp * 16;
  }
};

#endif  // SNUG_HOPPER

template <class T, Activation kActivation, Role kRole, int kAcrossRight, int kBlocksOfRows>
__global__ void __launch_bounds__(kThreads, 1)
    gelu_product_kernel(const __grid_constant__ Arguments a) {
#if SNUG_HOPPER
  using Tile = gelu_kernels::Tile<kRole, kBlocksOfRows>;
  __shared__ Barriers<Tile> barriers;
  extern __shared__ unsigned char shared_bytes[];
  Block<Tile> block;
  block.first = int(blockIdx.x);
  block.step = int(gridDim.x);
  block.tiles = a.row_tiles * a.column_tiles;
  block.base = (shared_address(shared_bytes) + kTileAlign - 1) / kTileAlign * kTileAlign;
  block.full = shared_address(barriers.full);
  block.empty = shared_address(barriers.empty);
  block.argument = shared_address(barriers.argument);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      init_barrier(block.full + i * 8, 1);
      init_barrier(block.empty + i * 8, kGroupWarps);
    }
    for (int i = 0; i < kMathWarps; ++i) init_barrier(block.argument + i * 8, 1);
    show_barriers();
  }
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, int(threadIdx.x) / kGroupThreads, 0);
  if (group == kMathGroups) {
    give_registers<kCopyRegisters>();
    if (threadIdx.x == kMathThreads) copy_factors<kAcrossRight>(a, block);
  } else {
    take_registers<kMathRegisters>();
    Math<T, kActivation, Tile, kAcrossRight>{a, block, group}.run();
  }
#endif
}

}  // namespace snug::cuda::gelu_kernels
