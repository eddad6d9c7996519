// Layer norm of a row in registers, both directions, shared by norm.cu and embedding.cu. The
// formulas are those of ops/norm-inl.h: statistics in two passes, since a one-pass variance
// cancels.
#pragma once

#include "cuda/column_sums.cuh"
#include "cuda/rows.cuh"

namespace snug::cuda {

struct NormStats {
  float mean = 0.0f, rstd = 0.0f;  // rstd = 1 / sqrt(variance + eps)

  __device__ float normalized(float value) const { return (value - mean) * rstd; }
};

// 1 / sqrt(x) to about a unit in the last place, of an x that is normal and not large: Newton's
// step behind the instruction's approximation, a third of what division and root take.
__device__ inline float reciprocal_root(float x) {
  const float guess = rsqrtf(x);
  return fmaf(0.5f * guess, fmaf(-x * guess, guess, 1.0f), guess);
}

template <class Shape>
__device__ inline NormStats row_stats(const Eight (&values)[Shape::kVectors], int cols, float eps) {
  float total[1] = {};  // what is not there is zero
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kEight; ++i) total[0] += values[v].at[i];
  }
  Shape::sum(total, 0);
  const float mean = total[0] * (1.0f / float(cols));
  float squares[1] = {};
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
    const int column = Shape::column(v);
    if (column >= cols) continue;
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      const float off = Shape::present(column, i, cols) ? values[v].at[i] - mean : 0.0f;
      squares[0] = fmaf(off, off, squares[0]);
    }
  }
  Shape::sum(squares, 1);
  return {mean, reciprocal_root(squares[0] * (1.0f / float(cols)) + eps)};
}

__device__ inline Eight affine(const Eight& values, const NormStats& stats, const Eight& gamma,
                               const Eight& beta) {
  Eight y;
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    y.at[i] = fmaf(stats.normalized(values.at[i]), gamma.at[i], beta.at[i]);
  }
  return y;
}

__device__ inline NormStats load_stats(const float* stats, int64_t row) {
  const float2 both = reinterpret_cast<const float2*>(stats)[row];
  return {both.x, both.y};
}
// By one thread of the group; stats may be null.
template <class Shape>
__device__ inline void store_stats(float* stats, int64_t row, const NormStats& of_row) {
  if (stats && threadIdx.x % Shape::kThreads == 0) {
    reinterpret_cast<float2*>(stats)[row] = {of_row.mean, of_row.rstd};
  }
}

template <class Shape, class T>
__device__ inline void store_zeros(T* row, int cols) {
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
    if (Shape::column(v) < cols) store_eight<Shape::kWhole>(row, Shape::column(v), cols, Eight());
  }
}

// The gradient of a row from dy: rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * gamma, as
// two fused steps per element.
struct NormRowGradient {
  float rstd, slope, offset;

  // The product is rounded as it was for the mean: a fused one would leave a remainder, which rstd
  // may enlarge.
  __device__ float at(float dy, float gamma, float value) const {
    return fmaf(__fmul_rn(dy, gamma), rstd, fmaf(value, slope, offset));
  }
};

// Some rows at a time. vector(r, v, dy, values) gives vector v of row r. Adds to the first two sums
// what the rows add to dgamma and dbeta. `turn` counts the calls, see RowShape::sum().
template <class Shape, int kRows, class Sums, class Vector>
__device__ inline void row_gradients(const NormStats (&stats)[kRows],
                                     const Eight (&gamma)[Shape::kVectors], int cols, int turn,
                                     Sums& sums, NormRowGradient (&gradients)[kRows],
                                     const Vector& vector) {
  float totals[2 * kRows] = {};  // of g and g * xhat
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float shift = -stats[r].mean * stats[r].rstd;
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      if (Shape::column(v) >= cols) continue;
      Eight dy, values;
      vector(r, v, dy, values);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float xhat = fmaf(values.at[i], stats[r].rstd, shift),
                    g = __fmul_rn(dy.at[i], gamma[v].at[i]);
        totals[2 * r] += g;
        totals[2 * r + 1] = fmaf(g, xhat, totals[2 * r + 1]);
        sums.of[0][v].at[i] = fmaf(dy.at[i], xhat, sums.of[0][v].at[i]);
        sums.of[1][v].at[i] += dy.at[i];
      }
    }
  }
  Shape::sum(totals, turn);
  const float of_column = 1.0f / float(cols);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float rstd = stats[r].rstd, slope = -rstd * rstd * totals[2 * r + 1] * of_column;
    gradients[r] = {rstd, slope, -rstd * (totals[2 * r] * of_column) - stats[r].mean * slope};
  }
}

template <class Shape>
__device__ inline void load_columns(const float* parameter, int cols,
                                    Eight (&columns)[Shape::kVectors]) {
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
    const int column = Shape::column(v);
    if (column < cols) columns[v] = load_eight<Shape::kWhole>(parameter, column, cols);
  }
}

// A kernel that walks rows: one block per multiprocessor, 128 registers per thread. A group has
// kRows rows in hand, first() and behind, then those that lie step() on.
template <class T, class Shape>
struct Walk {
  static constexpr int kRows = sizeof(T) == sizeof(float) || Shape::kVectors > 1 ? 1 : 2;
  static constexpr int kGroups = 512 / Shape::kThreads, kBlock = kGroups * Shape::kThreads;

  static __device__ int64_t first() {
    return (int64_t(Shape::group()) * gridDim.x + blockIdx.x) * kRows;
  }
  static __device__ int64_t step() { return int64_t(gridDim.x) * kGroups * kRows; }
  // Of a block over so many rows: as many for all its groups, though the last may have no row left.
  // They meet as often then, without which racecheck loses track of the barriers they all share.
  static __device__ int turns(int rows) {
    return (rows - int(blockIdx.x) * kRows + int(step()) - 1) / int(step());
  }
  // Blocks, one piece of the sums each. Groups of a block lie far apart, so that few rows use all
  // multiprocessors.
  static int64_t blocks(int64_t rows) { return std::min(kColumnSumPieces, ceil_div(rows, kRows)); }
};

// Threads of a block of a kernel that has one row per group in hand.
template <class Shape>
constexpr int forward_threads() {
  return Shape::kWarps > 4 ? Shape::kThreads : 128;
}
template <class Shape>
unsigned forward_blocks(int64_t rows) {
  return unsigned(ceil_div(rows, forward_threads<Shape>() / Shape::kThreads));
}

}  // namespace snug::cuda
