// What the element-wise kernels share: eight consecutive columns as the unit of access (16 bytes of
// bf16, one Philox call of a dropout mask), rows spread over the registers of some warps, sums over
// those warps, and the choice of template arguments from run-time types and sizes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "core/error.h"
#include "cuda/check.h"
#include "cuda/instructions.cuh"
#include "cuda/launch.h"
#include "cuda/pairs.cuh"
#include "ops/dropout_mask.h"

namespace snug::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kEight = 8;
// Of the GPU that grids are made for, an H100; others do with them too.
inline constexpr int kMultiprocessors = 132;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Eight {
  float at[kEight] = {};
};

// Eight elements as they lie in memory: half types take half the registers until they are needed.
template <class T>
struct Packed {
  static constexpr int kWords = 2 * sizeof(T);
  uint32_t words[kWords] = {};
};

__device__ inline Eight unpack(const Packed<float>& packed) {
  Eight eight;
#pragma unroll
  for (int i = 0; i < kEight; ++i) eight.at[i] = __uint_as_float(packed.words[i]);
  return eight;
}
template <class T>
__device__ inline Eight unpack(const Packed<T>& packed) {
  Eight eight;
#pragma unroll
  for (int i = 0; i < kEight / 2; ++i) {
    const float2 pair = unpacked<T>(packed.words[i]);
    eight.at[2 * i] = pair.x;
    eight.at[2 * i + 1] = pair.y;
  }
  return eight;
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(__half value) { return __half2float(value); }

template <class T>
__device__ inline T from_float(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

template <class T>
__device__ inline Packed<T> pack(const Eight& eight) {
  Packed<T> all;
#pragma unroll
  for (int i = 0; i < Packed<T>::kWords; ++i) {
    if constexpr (sizeof(T) == sizeof(float)) {
      all.words[i] = __float_as_uint(eight.at[i]);
    } else {
      all.words[i] = packed<T>(eight.at[2 * i], eight.at[2 * i + 1]);
    }
  }
  return all;
}

// Kernels that pass over a tensor begin at its end. Who has just written it began at the beginning,
// so the end is what the second-level cache still holds; and the beginning, written last, is what
// the product behind reads first.
template <class Index>
__device__ inline Index from_the_end(Index count, Index i) {
  return count - 1 - i;
}

// Whether the kernels that come next read the data again. What they do not, the second-level cache
// is asked to drop first, so that it keeps what they do.
enum class Reuse : bool { kSoon, kLate };

// The eight columns from `column` on of a row of `cols`. kWhole: cols is a multiple of eight, so
// vectors are aligned; otherwise element by element, and zero behind the end. `column` itself must
// be below cols.
template <bool kWhole, Reuse kReuse = Reuse::kSoon, class T>
__device__ inline Packed<T> load(const T* row, int column, int cols) {
  Packed<T> packed;
  if constexpr (kWhole) {
    const uint4* const from = reinterpret_cast<const uint4*>(row + column);
#pragma unroll
    for (int i = 0; i < Packed<T>::kWords / 4; ++i) {
      const uint4 four = kReuse == Reuse::kLate ? __ldcs(from + i) : from[i];
      packed.words[4 * i] = four.x, packed.words[4 * i + 1] = four.y;
      packed.words[4 * i + 2] = four.z, packed.words[4 * i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (column + i >= cols) break;
      if constexpr (sizeof(T) == sizeof(float)) {
        packed.words[i] = reinterpret_cast<const uint32_t*>(row)[column + i];
      } else {
        packed.words[i / 2] |= uint32_t(reinterpret_cast<const uint16_t*>(row)[column + i])
                               << (i % 2 * 16);
      }
    }
  }
  return packed;
}

template <bool kWhole, Reuse kReuse = Reuse::kSoon, class T>
__device__ inline void store(T* row, int column, int cols, const Packed<T>& packed) {
  if constexpr (kWhole) {
    uint4* const to = reinterpret_cast<uint4*>(row + column);
#pragma unroll
    for (int i = 0; i < Packed<T>::kWords / 4; ++i) {
      const uint32_t* const words = packed.words + 4 * i;
      const uint4 four = {words[0], words[1], words[2], words[3]};
      if constexpr (kReuse == Reuse::kLate) {
        __stcs(to + i, four);
      } else {
        to[i] = four;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (column + i >= cols) break;
      if constexpr (sizeof(T) == sizeof(float)) {
        reinterpret_cast<uint32_t*>(row)[column + i] = packed.words[i];
      } else {
        reinterpret_cast<uint16_t*>(row)[column + i] =
            uint16_t(packed.words[i / 2] >> (i % 2 * 16));
      }
    }
  }
}

// Lines of the second-level cache that a row of so many columns has for itself.
inline constexpr int kLineBytes = 128;
template <class T>
constexpr bool has_whole_lines(int64_t cols) {
  return cols * int64_t(sizeof(T)) % kLineBytes == 0;
}
// Where nobody reads a row again, what the cache has of it need not go to memory. Called by all
// threads of the row when they have used what they read: neighbours share lines.
template <class Shape, class T>
__device__ inline void forget_row(const T* row, int cols) {
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
    const int column = Shape::column(v);
    if (column < cols && column * int(sizeof(T)) % kLineBytes == 0) discard_line(row + column);
  }
}

template <bool kWhole, class T>
__device__ inline Eight load_eight(const T* row, int column, int cols) {
  return unpack(load<kWhole>(row, column, cols));
}
template <bool kWhole, Reuse kReuse = Reuse::kSoon, class T>
__device__ inline void store_eight(T* row, int column, int cols, const Eight& eight) {
  store<kWhole, kReuse>(row, column, cols, pack<T>(eight));
}

// For kernels with one thread per eight columns of one row, in blocks of kPlaceBlock: where a
// thread is in [rows, cols].
inline constexpr int kPlaceBlock = 128;
struct Place {
  int64_t row;
  int column;
};
__device__ inline Place place(int cols) {
  const uint32_t thread = blockIdx.x * kPlaceBlock + threadIdx.x,
                 vectors = uint32_t(cols + kEight - 1) / kEight;
  return {thread / vectors, int(thread % vectors) * kEight};
}
inline unsigned place_blocks(const Tensor& tensor) {
  const int64_t threads = tensor.rows * ceil_div(tensor.cols, kEight);
  SNUG_CHECK(threads < int64_t{1} << 31);  // place() divides 32 bits, which is much faster
  return unsigned(ceil_div(threads, kPlaceBlock));
}

__device__ inline Eight& operator+=(Eight& a, const Eight& b) {
#pragma unroll
  for (int i = 0; i < kEight; ++i) a.at[i] += b.at[i];
  return a;
}
__device__ inline Eight& operator*=(Eight& a, const Eight& b) {
#pragma unroll
  for (int i = 0; i < kEight; ++i) a.at[i] *= b.at[i];
  return a;
}

// token_mask_row() of dropout_mask.h in two steps, since its second load waits for the first. The
// batch is passed to kernels by value.
struct TokenPlace {
  int32_t sequence = 0, position = 0;
};
__device__ inline TokenPlace token_place(const Batch& batch, int64_t token) {
  return {batch.row_of[token], batch.positions[token]};
}
// The same for a row of any tensor: mask_row() of dropout_mask.h.
__device__ inline TokenPlace row_place(const Batch& batch, Rows rows, int64_t row) {
  if (rows == Rows::kSequences) return {int32_t(row), 0};
  return token_place(batch, rows == Rows::kTargets ? batch.target_rows[row] : row);
}
// How many rows there really are.
__device__ inline int real_rows(const StepState& state, Rows rows) {
  return rows == Rows::kSequences ? state.sequences
         : rows == Rows::kTargets ? state.targets
                                  : state.tokens;
}
__device__ inline MaskRow token_row(const Batch& batch, const TokenPlace& place) {
  return {batch.samples[place.sequence], uint32_t(place.position), 0};
}

// mask_factor() of dropout_mask.h for eight columns, also in two steps: draws take half the
// registers of factors.
using Draws = std::array<uint32_t, 4>;
__device__ inline Draws mask_draws(const DropoutMask& mask, const MaskRow& row, int column) {
  return philox<kMaskRounds>(mask_counter(mask, row, uint32_t(column) / kEight), mask.key);
}
// Ones where the mask is off, whatever was drawn.
__device__ inline Eight mask_factors(const DropoutMask& mask, const Draws& draws) {
  const uint32_t threshold = mask.threshold << 16;  // against the upper half of a word
  Eight factors;
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    const uint32_t draw = i % 2 ? draws[i / 2] : draws[i / 2] << 16;
    factors.at[i] = draw >= threshold ? mask.scale : 0.0f;
  }
  return factors;
}
__device__ inline Eight mask_factors(const DropoutMask& mask, const MaskRow& row, int column) {
  return mask_factors(mask, mask_draws(mask, row, column));
}

// Over kLanes neighbouring lanes, the same bits in each; all lanes of the warp must call it.
template <int kLanes = kWarp, class Value>
__device__ inline Value lanes_sum(Value value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  return value;
}

// Of N values at once, N a power of two: lane n, n + N and so on get the sum of value n. Lanes
// share the work on several values, so this takes N + 1 to N + 4 exchanges where lanes_sum() takes
// five for each.
template <int N>
__device__ inline float lanes_sums(float (&values)[N]) {
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
    const bool upper = threadIdx.x & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float keep = upper ? values[half + i] : values[i],
                  give = upper ? values[i] : values[half + i];
      values[i] = keep + __shfl_xor_sync(0xffffffffu, give, half);
    }
  }
#pragma unroll
  for (int step = N; step < kWarp; step *= 2) {
    values[0] += __shfl_xor_sync(0xffffffffu, values[0], step);
  }
  return values[0];
}

// In every thread of a block of up to 1024; all must call it.
__device__ inline double block_sum(double value) {
  __shared__ double sums[kWarp];
  value = lanes_sum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0.0;
  for (int warp = 0; warp < int(blockDim.x) / kWarp; ++warp) value += sums[warp];
  return value;
}

// A row of up to kColumns columns in the registers of kWarps warps, a group: vector v of a thread
// is eight columns, and neighbouring threads hold neighbouring vectors. A block holds several
// groups, each with a row of its own. kExact: rows have kColumns columns, so that nothing has to be
// compared with their end.
template <int kWarpsOfRow, int kVectorsOfThread, bool kWholeVectors, bool kExactly = false>
struct RowShape {
  static constexpr int kWarps = kWarpsOfRow, kVectors = kVectorsOfThread, kThreads = kWarps * kWarp;
  static constexpr bool kWhole = kWholeVectors, kExact = kExactly;
  static constexpr int kColumns = kThreads * kVectors * kEight;

  // The number of columns, known to the compiler where it can be.
  static __device__ int width(int cols) { return kExact ? kColumns : cols; }

  static __device__ int group() { return int(threadIdx.x) / kThreads; }
  static __device__ int column(int vector) {
    return (vector * kThreads + int(threadIdx.x) % kThreads) * kEight;
  }
  // Whether element i of the vector at `column` is there; that `column` is must be known.
  static __device__ bool present(int column, int i, int cols) {
    return kWhole || column + i < cols;
  }

  // Sums over the group, the same bits in each of its threads. Calls alternate between two places,
  // `turn` even and odd: who writes to one of them knows by the barrier of the call in between that
  // all have read it.
  template <int N>
  static __device__ void sum(float (&values)[N], int turn) {
    const float of_warp = lanes_sums(values);
    if constexpr (kWarps == 1) {
#pragma unroll
      for (int n = 0; n < N; ++n) values[n] = __shfl_sync(0xffffffffu, of_warp, n);
    } else {
      struct alignas(sizeof(float) * N) Values {
        float at[N];
      };
      __shared__ Values sums[2][kWarp];
      const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
      if (lane < N) sums[turn % 2][warp].at[lane] = of_warp;
      wait();
      Values total = sums[turn % 2][group() * kWarps];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        const Values one = sums[turn % 2][group() * kWarps + w];
#pragma unroll
        for (int n = 0; n < N; ++n) total.at[n] += one.at[n];
      }
#pragma unroll
      for (int n = 0; n < N; ++n) values[n] = total.at[n];
    }
  }

 private:
  // A barrier of the group alone: its neighbours may be rows ahead.
  static __device__ void wait() { meet_at<kThreads>(group() + 1); }
};

template <bool kWhole, int kWarps, int kVectors, class F>
bool with_shape_if(int64_t cols, const F& f) {
  using Shape = RowShape<kWarps, kVectors, kWhole>;
  if ((kWhole && cols % kEight != 0) || cols > Shape::kColumns) return false;
  f.template operator()<Shape>();
  return true;
}

template <int kWarps, int kVectors, class F>
bool with_exact_shape_if(int64_t cols, const F& f) {
  using Shape = RowShape<kWarps, kVectors, true, true>;
  if (cols != Shape::kColumns) return false;
  f.template operator()<Shape>();
  return true;
}

// Calls f with the shape for rows of `cols` columns: one warp per row where that is enough.
// Register use follows from the number of vectors, so the usual widths have shapes that fit them;
// any other width takes a larger one and leaves some of it idle.
template <class F>
void with_row_shape(int64_t cols, const F& f) {
  SNUG_CHECK((with_exact_shape_if<1, 3>(cols, f) || with_exact_shape_if<1, 4>(cols, f) ||
              with_shape_if<true, 1, 2>(cols, f) || with_shape_if<true, 1, 3>(cols, f) ||
              with_shape_if<true, 1, 4>(cols, f) || with_shape_if<true, 4, 2>(cols, f) ||
              with_shape_if<true, 4, 4>(cols, f) || with_shape_if<false, 1, 4>(cols, f) ||
              with_shape_if<false, 4, 4>(cols, f) || with_shape_if<false, 16, 4>(cols, f)));
}

// The same for kernels that keep something per column, like sums: a thread has eight columns and as
// many warps share a row as that takes, so there are registers for many rows in flight.
template <class F>
void with_column_shape(int64_t cols, const F& f) {
  SNUG_CHECK((with_exact_shape_if<3, 1>(cols, f) || with_exact_shape_if<4, 1>(cols, f) ||
              with_shape_if<true, 1, 1>(cols, f) || with_shape_if<true, 2, 1>(cols, f) ||
              with_shape_if<true, 3, 1>(cols, f) || with_shape_if<true, 4, 1>(cols, f) ||
              with_shape_if<true, 8, 1>(cols, f) || with_shape_if<true, 16, 1>(cols, f) ||
              with_shape_if<false, 4, 1>(cols, f) || with_shape_if<false, 16, 4>(cols, f)));
}

// Calls f with the element type of activations.
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kF32) return f.template operator()<float>();
  if (dtype == DType::kBF16) return f.template operator()<__nv_bfloat16>();
  SNUG_CHECK(dtype == DType::kF16);
  return f.template operator()<__half>();
}

// Calls f with a bool as a compile-time constant.
template <class F>
void with_bool(bool value, const F& f) {
  if (value) return f.template operator()<true>();
  return f.template operator()<false>();
}

template <class T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

}  // namespace snug::cuda
