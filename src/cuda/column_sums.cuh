// Sums over rows in pieces, see pending_sums.h: a kernel for rows that need nothing but their own
// elements, which adds its pieces itself, and what kernels that walk rows need to leave theirs.
#pragma once

#include "cuda/pending_sums.h"
#include "cuda/rows.cuh"
#include "ops/cuda_workspace.h"

namespace snug::cuda {

inline constexpr int kSumWarps = 8, kSumColumns = kWarp * kEight;
static_assert(kSumWarps == kEight);  // joining the warps of column_sums_kernel
inline constexpr int kMaxSumGroups = 256;
inline constexpr int kSumResidency = 3;  // blocks per multiprocessor
// Wanted, where there are enough rows: all at once.
inline constexpr int kSumBlocks = kSumResidency * kMultiprocessors;

// How many blocks of some columns are done; back at zero when the kernel ends. One will do: kernels
// with sums are on one stream.
static __device__ unsigned int finished_blocks[kMaxSumGroups];

// For rows that need nothing but their own elements. A term says what a row adds:
//   Loaded load(row, column) fetches it, void add(loaded, row, column, sums) adds it to Eight
//   sums[Term::kSums].
// A block does 256 columns of one piece: the warps of all pieces take rows in turn, Term::kInFlight
// each at a time and the last rows first, see from_the_end(). The last block of the columns adds
// the pieces, [pieces, kSums, cols], which costs less than another kernel.
template <class Term>
__global__ void __launch_bounds__(kSumWarps* kWarp, kSumResidency)
    column_sums_kernel(Term term, int64_t rows, int cols, float* partials, SumTargets targets) {
  constexpr int kSums = Term::kSums, kInFlight = Term::kInFlight;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int column = (int(blockIdx.x) * kWarp + lane) * kEight;
  const int64_t step = int64_t(gridDim.y) * kSumWarps;
  Eight sums[kSums];
  if (column < cols) {
    for (int64_t row = from_the_end(rows, int64_t(blockIdx.y) * kSumWarps + warp); row >= 0;
         row -= kInFlight * step) {
      typename Term::Loaded loaded[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (row >= i * step) loaded[i] = term.load(row - i * step, column);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (row >= i * step) term.add(loaded[i], row - i * step, column, sums);
      }
    }
  }
  if (!partials) return;
  __shared__ float shared[kSumWarps][kSumColumns];
#pragma unroll
  for (int n = 0; n < kSums; ++n) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEight; ++i) shared[warp][i * kWarp + lane] = sums[n].at[i];
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kSumWarps; ++w) sum += shared[w][threadIdx.x];
    // Warp n adds up element n of all lanes.
    const int to = (int(blockIdx.x) * kWarp + lane) * kEight + warp;
    if (to < cols) partials[(int64_t(blockIdx.y) * kSums + n) * cols + to] = sum;
  }

  __shared__ bool last;
  __threadfence();  // the partials before the count
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicInc(&finished_blocks[blockIdx.x], gridDim.y - 1) == gridDim.y - 1;
  }
  __syncthreads();
  const int own = int(blockIdx.x) * kSumColumns + int(threadIdx.x);
  if (!last || own >= cols) return;
  __threadfence();
#pragma unroll
  for (int n = 0; n < kSums; ++n) {
    if (!targets.at[n]) continue;
    const float before = targets.at[n][own];
    float sum = 0.0f;
#pragma unroll 16
    for (int piece = 0; piece < int(gridDim.y); ++piece) {
      sum += __ldcg(partials + (int64_t(piece) * kSums + n) * cols + own);
    }
    targets.at[n][own] = before + sum;
  }
}

// partials holds kColumnSumPieces * kSums * cols floats, or is null where no sums are wanted.
template <class Term>
void launch_column_sums(const Term& term, int64_t rows, int64_t cols, float* partials,
                        const SumTargets& targets, cudaStream_t stream) {
  const int64_t groups = ceil_div(cols, kSumColumns);
  SNUG_CHECK(groups <= kMaxSumGroups);
  const int64_t balanced = std::max<int64_t>(kSumBlocks / groups, 1);
  const int64_t pieces = std::min({kColumnSumPieces, balanced, ceil_div(rows, 4 * kSumWarps)});
  const dim3 grid = {unsigned(groups), unsigned(pieces)};
  column_sums_kernel<Term>
      <<<grid, kSumWarps * kWarp, 0, stream>>>(term, rows, int(cols), partials, targets);
  SNUG_CUDA_LAUNCHED("column_sums");
}

// For kernels that walk rows of a RowShape: kSums sums per column in the registers of each group,
// joined in shared memory when the block is done.
template <class Shape, int kBlock, int kSumsOfColumn>
struct RowSums {
  static constexpr int kSums = kSumsOfColumn, kGroups = kBlock / Shape::kThreads;

  Eight of[kSums][Shape::kVectors];

  // To partials[blockIdx.x, kSums, cols]. All threads of the block must come here.
  __device__ void write(float* partials, int cols) const {
    float* const to = partials + int64_t(blockIdx.x) * kSums * cols;
    if constexpr (kGroups == 1) {
#pragma unroll
      for (int n = 0; n < kSums; ++n) {
#pragma unroll
        for (int v = 0; v < Shape::kVectors; ++v) {
          const int column = Shape::column(v);
          if (column < cols) store_eight<Shape::kWhole>(to + n * cols, column, cols, of[n][v]);
        }
      }
    } else {
      constexpr int kSlots = slots();
      __shared__ float sums[kSlots][kSums][Shape::kColumns];
      for (int round = 0; round < kGroups / kSlots; ++round) {
        if (Shape::group() / kSlots == round) add_to(sums[Shape::group() % kSlots], round == 0);
        __syncthreads();
      }
      for (int i = int(threadIdx.x); i < kSums * cols; i += kBlock) {
        const int n = i / cols, column = i - n * cols;
        float sum = 0.0f;
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) sum += sums[slot][n][place(column)];
        to[i] = sum;
      }
    }
  }

 private:
  // Groups that write at a time, as 45 KiB allow.
  static constexpr int slots() {
    int slots = kGroups;
    while (slots > 1 &&
           (kGroups % slots != 0 || slots * kSums * Shape::kColumns * sizeof(float) > 46080)) {
      --slots;
    }
    return slots;
  }
  // Where a column lies in shared memory: element i of all threads together, so that a warp's
  // accesses do not collide.
  static __device__ int place(int column) {
    const int vector = column / kEight;
    return (vector / Shape::kThreads * kEight + column % kEight) * Shape::kThreads +
           vector % Shape::kThreads;
  }
  __device__ void add_to(float (&sums)[kSums][Shape::kColumns], bool set) const {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const int at = place(Shape::column(v) + i);
#pragma unroll
        for (int n = 0; n < kSums; ++n) sums[n][at] = of[n][v].at[i] + (set ? 0.0f : sums[n][at]);
      }
    }
  }
};

}  // namespace snug::cuda
