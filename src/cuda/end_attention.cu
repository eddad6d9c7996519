// Kernels of ops/end_attention.h. There is little to multiply: a query for each head and text, with
// tokens or with the rows of a weight that belong to the head. So nothing here is for tensor cores;
// each kernel holds a block of sums in registers and reads tokens once, or once for eight heads.
#include <cmath>

#include "cuda/kernels.h"
#include "cuda/products.h"
#include "cuda/rows.cuh"
#include "ops/end_attention.h"

namespace snug::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kHeads = 8;  // at once

struct Sizes {
  int heads, head_dim, hidden;
  int64_t tokens, sequences;  // rows of tensors
  const int32_t* starts;
  const StepState* state;

  // Where a row of [sequences, heads, hidden] begins.
  __device__ int64_t row(int64_t sequence, int head) const {
    return (sequence * heads + head) * hidden;
  }
};

// Of kernels whose blocks share sequences: the grid's first dimension, which alone may be large,
// counts parts of sequences.
struct BlockPlace {
  int sequence, part, start, length;

  __device__ BlockPlace(const Sizes& sizes, int parts)
      : sequence(int(blockIdx.x) / parts), part(int(blockIdx.x) % parts) {
    start = sizes.starts[sequence], length = sizes.starts[sequence + 1] - start;
  }
};

// Two neighbouring columns of a row of `cols`; zero behind its end. kEven: cols is even, so pairs
// are aligned.
template <bool kEven, class T>
__device__ inline float2 load_pair(const T* row, int column, int cols) {
  struct alignas(2 * sizeof(T)) Pair {
    T first, second;
  };
  if (column >= cols) return {0.0f, 0.0f};
  if constexpr (kEven) {
    const Pair pair = *reinterpret_cast<const Pair*>(row + column);
    return {to_float(pair.first), to_float(pair.second)};
  } else {
    return {to_float(row[column]), column + 1 < cols ? to_float(row[column + 1]) : 0.0f};
  }
}

// y[s, head, :] = the sum over a head's columns of x[s, column] w[column, :]
constexpr int kSpreadDepth = 64, kSpreadRows = 8;  // few rows, so that there are many blocks
template <class T>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(const Sizes sizes, const T* x, const T* w, float* y) {
  __shared__ float4 left[kSpreadDepth][kSpreadRows / 4];
  const int column = int(blockIdx.x) * kThreads + int(threadIdx.x), head = int(blockIdx.y);
  const int64_t row0 = int64_t(blockIdx.z) * kSpreadRows;
  float sums[kSpreadRows] = {};
  for (int depth0 = 0; depth0 < sizes.head_dim; depth0 += kSpreadDepth) {
    const int depth = min(kSpreadDepth, sizes.head_dim - depth0),
              first = head * sizes.head_dim + depth0;
    __syncthreads();
    for (int i = int(threadIdx.x); i < kSpreadDepth * kSpreadRows; i += kThreads) {
      const int d = i % kSpreadDepth, row = i / kSpreadDepth;
      const bool there = d < depth && row0 + row < sizes.sequences;
      reinterpret_cast<float*>(left[d])[row] =
          there ? to_float(x[(row0 + row) * sizes.hidden + first + d]) : 0.0f;
    }
    __syncthreads();
    if (column >= sizes.hidden) continue;
#pragma unroll 8
    for (int d = 0; d < depth; ++d) {
      const float factor = to_float(w[int64_t(first + d) * sizes.hidden + column]);
#pragma unroll
      for (int i = 0; i < kSpreadRows / 4; ++i) {
        const float4 four = left[d][i];
        sums[4 * i] = fmaf(four.x, factor, sums[4 * i]);
        sums[4 * i + 1] = fmaf(four.y, factor, sums[4 * i + 1]);
        sums[4 * i + 2] = fmaf(four.z, factor, sums[4 * i + 2]);
        sums[4 * i + 3] = fmaf(four.w, factor, sums[4 * i + 3]);
      }
    }
  }
  if (column >= sizes.hidden) return;
#pragma unroll
  for (int row = 0; row < kSpreadRows; ++row) {
    if (row0 + row < sizes.sequences) y[sizes.row(row0 + row, head) + column] = sums[row];
  }
}

// y[s, column] = w[column, :] · x[s, head, :], plus the bias times `share`[s, head]. Where heads
// share x, head_stride is 0.
template <class X>
struct GatherArguments {
  const X* x;
  int64_t row_stride;
  int head_stride;
};
constexpr int kGatherRows = 8;  // sequences of a warp, one column each
template <bool kWhole, class T, class X>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Sizes sizes, const GatherArguments<X> a, const T* w, const T* bias,
                  const float* share, T* y) {
  const int lane = int(threadIdx.x) % kWarp,
            column = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp;
  const int64_t row0 = int64_t(blockIdx.y) * kGatherRows;
  if (column >= sizes.hidden) return;
  const int head = column / sizes.head_dim;
  float sums[kGatherRows] = {};
  for (int c = lane * kEight; c < sizes.hidden; c += kWarp * kEight) {
    const Eight factors = load_eight<kWhole>(w + int64_t(column) * sizes.hidden, c, sizes.hidden);
#pragma unroll
    for (int row = 0; row < kGatherRows; ++row) {
      if (row0 + row >= sizes.sequences) continue;
      const Eight values = load_eight<kWhole>(
          a.x + (row0 + row) * a.row_stride + int64_t(head) * a.head_stride, c, sizes.hidden);
#pragma unroll
      for (int i = 0; i < kEight; ++i) sums[row] = fmaf(values.at[i], factors.at[i], sums[row]);
    }
  }
  float sum = lanes_sums(sums);
  const int64_t row = row0 + lane;
  if (lane >= kGatherRows || row >= sizes.sequences) return;
  if (bias) sum = fmaf(to_float(bias[column]), share ? share[row * sizes.heads + head] : 1.0f, sum);
  y[row * sizes.hidden + column] = from_float<T>(row < sizes.state->sequences ? sum : 0.0f);
}

// y[token, head] = x[token, :] · rows[s, head, :] * scale; a warp takes kDotTokens tokens of a
// sequence and kHeads heads.
constexpr int kDotTokens = 8;
template <bool kWhole, class T>
__global__ void __launch_bounds__(kThreads) dots_kernel(const Sizes sizes, int parts, const T* x,
                                                        const float* rows, float scale, float* y) {
  const auto [sequence, part, start, length] = BlockPlace(sizes, parts);
  const int lane = int(threadIdx.x) % kWarp, head0 = int(blockIdx.y) * kHeads;
  const int first = (part * kWarps + int(threadIdx.x) / kWarp) * kDotTokens;
  if (first >= length) return;
  float sums[kDotTokens][kHeads] = {};
  for (int c = lane * kEight; c < sizes.hidden; c += kWarp * kEight) {
    Eight values[kDotTokens];
#pragma unroll
    for (int t = 0; t < kDotTokens; ++t) {
      values[t] = load_eight<kWhole>(x + int64_t(start + min(first + t, length - 1)) * sizes.hidden,
                                     c, sizes.hidden);
    }
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      if (head0 + head >= sizes.heads) continue;
      const Eight factors =
          load_eight<kWhole>(rows + sizes.row(sequence, head0 + head), c, sizes.hidden);
#pragma unroll
      for (int t = 0; t < kDotTokens; ++t) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
          sums[t][head] = fmaf(values[t].at[i], factors.at[i], sums[t][head]);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kDotTokens; ++t) {
    const float sum = lanes_sums(sums[t]);
    const bool there = lane < kHeads && head0 + lane < sizes.heads && first + t < length;
    if (there) y[int64_t(start + first + t) * sizes.heads + head0 + lane] = sum * scale;
  }
}

// rows[s, head, :] = the sum over the tokens of a sequence of factors[token, head] x[token, :].
// Warps share the tokens and add up what they have in their order.
constexpr int kSumThreads = 256, kSumWarps = kSumThreads / kWarp, kSumColumns = 2 * kWarp,
              kSumTokens = 64, kSumHeads = 16;
template <bool kEven, class T>
__global__ void __launch_bounds__(kSumThreads)
    sums_kernel(const Sizes sizes, int parts, const float* factors, const T* x, float* rows) {
  __shared__ float4 shared[kSumTokens][kSumHeads / 4];
  __shared__ float2 of_warps[kSumWarps][kSumHeads][kWarp];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const auto [sequence, part, start, length] = BlockPlace(sizes, parts);
  const int head0 = int(blockIdx.y) * kSumHeads, column = part * kSumColumns + 2 * lane;
  constexpr int kOfWarp = kSumTokens / kSumWarps, kOfThread = kSumTokens * kSumHeads / kSumThreads;
  float2 values[kOfWarp];
  float own[kOfThread];
  const auto fetch = [&, start = start, length = length](int first) {
#pragma unroll
    for (int i = 0; i < kOfWarp; ++i) {
      const int token = first + i * kSumWarps + warp;
      values[i] = token < length ? load_pair<kEven>(x + int64_t(start + token) * sizes.hidden,
                                                    column, sizes.hidden)
                                 : float2{0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int at = i * kSumThreads + int(threadIdx.x), token = first + at / kSumHeads,
                head = head0 + at % kSumHeads;
      const bool there = token < length && head < sizes.heads;
      own[i] = there ? factors[int64_t(start + token) * sizes.heads + head] : 0.0f;
    }
  };
  float2 sums[kSumHeads] = {};
  fetch(0);
  for (int first = 0; first < length; first += kSumTokens) {
    float2 now[kOfWarp];
#pragma unroll
    for (int i = 0; i < kOfWarp; ++i) now[i] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      reinterpret_cast<float*>(shared)[i * kSumThreads + int(threadIdx.x)] = own[i];
    }
    __syncthreads();
    fetch(first + kSumTokens);
#pragma unroll
    for (int i = 0; i < kOfWarp; ++i) {
#pragma unroll
      for (int h = 0; h < kSumHeads; h += 4) {
        const float4 four = shared[i * kSumWarps + warp][h / 4];
        const float at[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sums[h + k].x = fmaf(at[k], now[i].x, sums[h + k].x);
          sums[h + k].y = fmaf(at[k], now[i].y, sums[h + k].y);
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kSumHeads; ++h) of_warps[warp][h][lane] = sums[h];
  __syncthreads();
  for (int head = warp; head < kSumHeads; head += kSumWarps) {
    if (head0 + head >= sizes.heads) break;
    float2 total = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < kSumWarps; ++w) {
      total.x += of_warps[w][head][lane].x, total.y += of_warps[w][head][lane].y;
    }
    float* const to = rows + sizes.row(sequence, head0 + head) + column;
    if (column < sizes.hidden) to[0] = total.x;
    if (column + 1 < sizes.hidden) to[1] = total.y;
  }
}

// dx[token, :] (+)= the sum over heads of d_scores[token, head] queries[s, head, :] + kept[token,
// head] d_means[s, head, :]
struct TokenGradient {
  const float *d_scores, *kept, *queries, *d_means;
  bool add;
};
constexpr int kGradientTokens = 16, kGradientColumns = 2 * kThreads;
template <bool kEven, class T>
__global__ void __launch_bounds__(kThreads)
    token_gradient_kernel(const Sizes sizes, int parts, const TokenGradient a, T* dx) {
  __shared__ float4 factors[kGradientTokens][2][kHeads / 4];  // of queries, of d_means
  const int64_t real = sizes.state->tokens, blocks = int64_t(gridDim.x) * gridDim.y,
                block = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
  if (!a.add) {
    for (int64_t i = real * sizes.hidden + block * kThreads + threadIdx.x;
         i < sizes.tokens * sizes.hidden; i += blocks * kThreads) {
      dx[i] = from_float<T>(0.0f);
    }
  }
  const auto [sequence, part, start, length] = BlockPlace(sizes, parts);
  const int column = int(blockIdx.y) * kGradientColumns + 2 * int(threadIdx.x),
            first = part * kGradientTokens;
  if (first >= length) return;
  float2 sums[kGradientTokens] = {};
  for (int head0 = 0; head0 < sizes.heads; head0 += kHeads) {
    __syncthreads();
    for (int i = int(threadIdx.x); i < kGradientTokens * 2 * kHeads; i += kThreads) {
      const int token = i / (2 * kHeads), which = i / kHeads % 2, head = head0 + i % kHeads;
      const bool there = first + token < length && head < sizes.heads;
      const float* const from = which == 0 ? a.d_scores : a.kept;
      reinterpret_cast<float*>(factors[token][which])[i % kHeads] =
          there ? from[int64_t(start + first + token) * sizes.heads + head] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float2 rows[kHeads];
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float* const from = (which == 0 ? a.queries : a.d_means) +
                                  sizes.row(sequence, min(head0 + head, sizes.heads - 1));
        rows[head] = load_pair<kEven>(from, column, sizes.hidden);
      }
#pragma unroll
      for (int token = 0; token < kGradientTokens; ++token) {
#pragma unroll
        for (int h = 0; h < kHeads; h += 4) {
          const float4 four = factors[token][which][h / 4];
          const float at[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            sums[token].x = fmaf(at[k], rows[h + k].x, sums[token].x);
            sums[token].y = fmaf(at[k], rows[h + k].y, sums[token].y);
          }
        }
      }
    }
  }
#pragma unroll
  for (int token = 0; token < kGradientTokens; ++token) {
    if (first + token >= length) break;
    T* const to = dx + int64_t(start + first + token) * sizes.hidden + column;
    const float both[2] = {sums[token].x, sums[token].y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (column + i < sizes.hidden) {
        to[i] = from_float<T>(a.add ? both[i] + to_float(to[i]) : both[i]);
      }
    }
  }
}

// dw[column, :] (+)= the sum over sequences of x[s, column] y[s, head, :]
constexpr int kOuterColumns = 16, kOuterRows = 32;
template <class T, class Y, class W>
__global__ void __launch_bounds__(kThreads)
    outer_kernel(const Sizes sizes, const T* x, const GatherArguments<Y> a, bool add, W* dw) {
  __shared__ float left[kOuterRows][kOuterColumns];
  const int groups = (sizes.head_dim + kOuterColumns - 1) / kOuterColumns;
  const int head = int(blockIdx.y) / groups, of_head = int(blockIdx.y) % groups * kOuterColumns;
  const int first = head * sizes.head_dim + of_head,
            count = min(kOuterColumns, sizes.head_dim - of_head);
  const int column = int(blockIdx.x) * kThreads + int(threadIdx.x);
  float sums[kOuterColumns] = {};
  for (int64_t row0 = 0; row0 < sizes.sequences; row0 += kOuterRows) {
    __syncthreads();
    for (int i = int(threadIdx.x); i < kOuterRows * kOuterColumns; i += kThreads) {
      const int row = i / kOuterColumns, c = i % kOuterColumns;
      const bool there = row0 + row < sizes.sequences && c < count;
      left[row][c] = there ? to_float(x[(row0 + row) * sizes.hidden + first + c]) : 0.0f;
    }
    __syncthreads();
    if (column >= sizes.hidden) continue;
    const int rows = int(min(int64_t{kOuterRows}, sizes.sequences - row0));
#pragma unroll 8
    for (int row = 0; row < rows; ++row) {
      const float factor =
          to_float(a.x[(row0 + row) * a.row_stride + int64_t(head) * a.head_stride + column]);
#pragma unroll
      for (int c = 0; c < kOuterColumns; ++c) sums[c] = fmaf(left[row][c], factor, sums[c]);
    }
  }
  if (column >= sizes.hidden) return;
  for (int c = 0; c < kOuterColumns; ++c) {
    if (c >= count) break;
    W& to = dw[int64_t(first + c) * sizes.hidden + column];
    to = from_float<W>(add ? to_float(to) + sums[c] : sums[c]);
  }
}

// db of queries and of values; that of keys has no gradient.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_gradient_kernel(const Sizes sizes, const T* dq, const T* d_o, const float* kept_sums,
                         float* db) {
  const int column = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (column >= sizes.hidden) return;
  const bool of_values = blockIdx.y == 1;
  const int head = column / sizes.head_dim;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t row = 0; row < sizes.sequences; ++row) {
    const float value = to_float((of_values ? d_o : dq)[row * sizes.hidden + column]);
    sum = fmaf(value, of_values ? kept_sums[row * sizes.heads + head] : 1.0f, sum);
  }
  db[(of_values ? 2 * sizes.hidden : 0) + column] += sum;
}

// A warp for each head of a sequence; its lanes take eight tokens at a time, which share a draw.
struct SoftmaxRow {
  int64_t sequence;
  int head, start, length;
  MaskRow mask_row;

  __device__ SoftmaxRow(const Sizes& sizes, const DropoutMask& mask, const uint64_t* samples) {
    const int64_t warp = int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    sequence = warp / sizes.heads, head = int(warp % sizes.heads);
    if (!there(sizes)) return;
    start = sizes.starts[sequence], length = sizes.starts[sequence + 1] - start;
    if (!mask.on() || sequence >= sizes.state->sequences) return;
    mask_row = {samples[sequence], 0, uint32_t(head)};
  }
  __device__ bool there(const Sizes& sizes) const { return sequence < sizes.sequences; }
  // Calls f(group) for groups of eight tokens.
  template <class F>
  __device__ void each_group(const F& f) const {
    for (int first = int(threadIdx.x) % kWarp * kEight; first < length; first += kWarp * kEight) {
      f(first);
    }
  }
  // A group's values of [tokens, heads]; `rest` behind the end of the sequence.
  __device__ Eight load(const Sizes& sizes, const float* from, int first, float rest) const {
    Eight values;
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      values.at[i] =
          first + i < length ? from[int64_t(start + first + i) * sizes.heads + head] : rest;
    }
    return values;
  }
  __device__ void store(const Sizes& sizes, float* to, int first, const Eight& values) const {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (first + i < length) to[int64_t(start + first + i) * sizes.heads + head] = values.at[i];
    }
  }
  __device__ Eight factors(const DropoutMask& mask, int first) const {
    return mask.on() ? mask_factors(mask, mask_row, first) : mask_factors(mask, Draws());
  }
};

// Scores become probabilities.
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const Sizes sizes, const DropoutMask mask, const uint64_t* samples, float* p,
                   float* kept, float* kept_sums) {
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(sizes.state->tokens) * sizes.heads + int64_t(blockIdx.x) * kThreads +
                   threadIdx.x;
       i < sizes.tokens * sizes.heads; i += step) {
    p[i] = 0.0f;
  }
  const SoftmaxRow row(sizes, mask, samples);
  if (!row.there(sizes)) return;
  float most = -INFINITY, sum = 0.0f, kept_sum = 0.0f;
  row.each_group([&](int first) {
    for (const float score : row.load(sizes, p, first, -INFINITY).at) most = fmaxf(most, score);
  });
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  }
  row.each_group([&](int first) {
    Eight values = row.load(sizes, p, first, -INFINITY);
#pragma unroll
    for (float& value : values.at) sum += value = expf(value - most);
    row.store(sizes, p, first, values);
  });
  const float share = 1.0f / lanes_sum(sum);
  row.each_group([&](int first) {
    Eight values = row.load(sizes, p, first, 0.0f);
#pragma unroll
    for (float& value : values.at) value *= share;
    row.store(sizes, p, first, values);
    values *= row.factors(mask, first);
    row.store(sizes, kept, first, values);
#pragma unroll
    for (const float value : values.at) kept_sum += value;
  });
  kept_sum = lanes_sum(kept_sum);
  if (threadIdx.x % kWarp == 0) kept_sums[row.sequence * sizes.heads + row.head] = kept_sum;
}

// From the gradients of kept probabilities, less what all of a head have in common, those of the
// scores.
template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_kernel(const Sizes sizes, const DropoutMask mask, const uint64_t* samples,
                            const float* p, const T* d_o, const T* bias, float scale, float* kept,
                            float* d_scores) {
  const SoftmaxRow row(sizes, mask, samples);
  if (!row.there(sizes)) return;
  float common = 0.0f, delta = 0.0f;
  for (int i = int(threadIdx.x) % kWarp; i < sizes.head_dim; i += kWarp) {
    const int column = row.head * sizes.head_dim + i;
    common =
        fmaf(to_float(d_o[row.sequence * sizes.hidden + column]), to_float(bias[column]), common);
  }
  common = lanes_sum(common);
  row.each_group([&](int first) {
    Eight values = row.load(sizes, p, first, 0.0f),
          gradients = row.load(sizes, d_scores, first, 0.0f);
    const Eight factors = row.factors(mask, first);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      gradients.at[i] = (gradients.at[i] + common) * factors.at[i];
      delta = fmaf(values.at[i], gradients.at[i], delta);
    }
    values *= factors;
    row.store(sizes, kept, first, values);
    row.store(sizes, d_scores, first, gradients);
  });
  delta = lanes_sum(delta);
  row.each_group([&](int first) {
    const Eight values = row.load(sizes, p, first, 0.0f);
    Eight gradients = row.load(sizes, d_scores, first, 0.0f);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      gradients.at[i] = values.at[i] * (gradients.at[i] - delta) * scale;
    }
    row.store(sizes, d_scores, first, gradients);
  });
}

// On the host.
class EndAttentionLaunch {
 public:
  EndAttentionLaunch(const EndAttentionSpec& spec, const Launch& call, bool backward)
      : spec_(spec),
        call_(call),
        space_(spec, call.batch->dims, {.kind = DeviceKind::kCuda}, backward),
        sizes_{.heads = int(spec.heads),
               .head_dim = int(spec.head_dim),
               .hidden = int(spec.hidden()),
               .tokens = call.batch->dims.tokens,
               .sequences = call.batch->dims.sequences,
               .starts = call.batch->starts,
               .state = call.state},
        mask_(dropout_mask(spec.dropout, spec.site, *call.step)) {
    SNUG_CHECK(call.workspace.size() >= space_.bytes);
  }

  template <class T>
  void forward() const {
    const Tensor &x = call_.in[0], &ends = call_.in[1], &w = call_.in[2], &b = call_.in[3];
    const Tensor &o = call_.out[0], &q = call_.out[1], &p = call_.out[2], &means = call_.out[3],
                 &kept_sums = call_.out[4];
    gather<T, T>(ends, 0, part<T>(w, 0), vector<T>(b, 0), nullptr, data_of<T>(q));
    spread<T>(data_of<T>(q), part<T>(w, 1), at(space_.queries));
    dots<T>(x, at(space_.queries), scale(), p.f32());
    softmax_kernel<<<softmax_blocks(), kThreads, 0, call_.stream>>>(
        sizes_, mask_, call_.batch->samples, p.f32(), at(space_.kept), kept_sums.f32());
    SNUG_CUDA_LAUNCHED("end_attention_softmax");
    sums<T>(at(space_.kept), x, means.f32());
    gather<T, float>(means, sizes_.hidden, part<T>(w, 2), vector<T>(b, 2), kept_sums.f32(),
                     data_of<T>(o));
  }

  template <class T>
  void backward(bool add_x, bool add_ends) const {
    const Tensor &x = call_.in[0], &ends = call_.in[1], &w = call_.in[2], &b = call_.in[3],
                 &q = call_.in[4], &p = call_.in[5];
    const Tensor &means = call_.in[6], &kept_sums = call_.in[7], &d_o = call_.in[8];
    const Tensor &dx = call_.out[0], &dends = call_.out[1], &dw = call_.out[2], &db = call_.out[3];
    float *const queries = at(space_.queries), *const d_queries = at(space_.d_queries),
                 *const d_means = at(space_.d_means);
    float *const d_scores = at(space_.d_scores), *const kept = at(space_.kept);
    T* const dq = reinterpret_cast<T*>(call_.workspace.data() + space_.dq);
    spread<T>(data_of<T>(q), part<T>(w, 1), queries);
    spread<T>(data_of<T>(d_o), part<T>(w, 2), d_means);
    dots<T>(x, d_means, 1.0f, d_scores);
    softmax_gradient_kernel<T><<<softmax_blocks(), kThreads, 0, call_.stream>>>(
        sizes_, mask_, call_.batch->samples, p.f32(), data_of<T>(d_o), vector<T>(b, 2), scale(),
        kept, d_scores);
    SNUG_CUDA_LAUNCHED("end_attention_softmax_gradient");
    sums<T>(d_scores, x, d_queries);
    if (dx) token_gradient<T>({d_scores, kept, queries, d_means, add_x}, data_of<T>(dx));
    const Tensor d_query_rows{d_queries, DType::kF32, sizes_.sequences,
                              sizes_.heads * sizes_.hidden};
    gather<T, float>(d_query_rows, sizes_.hidden, part<T>(w, 1), nullptr, nullptr, dq);
    if (dw) {
      outer<T, T>(dq, ends, 0, dw, 0);
      outer<T, float>(data_of<T>(q), d_query_rows, sizes_.hidden, dw, 1);
      outer<T, float>(data_of<T>(d_o), means, sizes_.hidden, dw, 2);
    }
    if (dends) {
      const ProductShape shape{.kind = ProductKind::kInputGradient,
                               .dtype = x.dtype,
                               .rows = sizes_.sequences,
                               .in = sizes_.hidden,
                               .out = sizes_.hidden,
                               .accumulate = add_ends};
      call_.products->run(shape, {.left = dq, .right = w.data, .result = dends.data},
                          call_.workspace.subspan(space_.products), call_.stream);
    }
    if (!db) return;
    bias_gradient_kernel<T>
        <<<dim3(blocks_of(sizes_.hidden, kThreads), 2), kThreads, 0, call_.stream>>>(
            sizes_, dq, data_of<T>(d_o), kept_sums.f32(), db.f32());
    SNUG_CUDA_LAUNCHED("end_attention_bias_gradient");
  }

 private:
  float scale() const { return 1.0f / std::sqrt(float(spec_.head_dim)); }
  float* at(size_t offset) const {
    return reinterpret_cast<float*>(call_.workspace.data() + offset);
  }
  // Of w or its gradient, and of b: the rows for queries, keys and values.
  template <class T>
  T* part(const Tensor& w, int which) const {
    return data_of<T>(w) + int64_t(which) * sizes_.hidden * sizes_.hidden;
  }
  template <class T>
  T* vector(const Tensor& b, int which) const {
    return data_of<T>(b) + int64_t(which) * sizes_.hidden;
  }
  static unsigned blocks_of(int64_t count, int64_t each) { return unsigned(ceil_div(count, each)); }
  unsigned softmax_blocks() const { return blocks_of(sizes_.sequences * sizes_.heads, kWarps); }
  unsigned sequences() const { return unsigned(sizes_.sequences); }

  template <class T>
  void spread(const T* x, const T* w, float* y) const {
    const dim3 grid(blocks_of(sizes_.hidden, kThreads), unsigned(sizes_.heads),
                    blocks_of(sizes_.sequences, kSpreadRows));
    spread_kernel<T><<<grid, kThreads, 0, call_.stream>>>(sizes_, x, w, y);
    SNUG_CUDA_LAUNCHED("end_attention_spread");
  }
  template <class T, class X>
  void gather(const Tensor& x, int head_stride, const T* w, const T* bias, const float* share,
              T* y) const {
    const dim3 grid(blocks_of(sizes_.hidden, kWarps), blocks_of(sizes_.sequences, kGatherRows));
    const GatherArguments<X> a{data_of<X>(x), x.cols, head_stride};
    with_bool(sizes_.hidden % kEight == 0, [&]<bool kWhole>() {
      gather_kernel<kWhole><<<grid, kThreads, 0, call_.stream>>>(sizes_, a, w, bias, share, y);
    });
    SNUG_CUDA_LAUNCHED("end_attention_gather");
  }
  template <class T>
  void dots(const Tensor& x, const float* rows, float factor, float* y) const {
    const unsigned parts = blocks_of(call_.batch->dims.longest, kWarps * kDotTokens);
    const dim3 grid(parts * sequences(), blocks_of(sizes_.heads, kHeads));
    with_bool(sizes_.hidden % kEight == 0, [&]<bool kWhole>() {
      dots_kernel<kWhole>
          <<<grid, kThreads, 0, call_.stream>>>(sizes_, int(parts), data_of<T>(x), rows, factor, y);
    });
    SNUG_CUDA_LAUNCHED("end_attention_dots");
  }
  template <class T>
  void sums(const float* factors, const Tensor& x, float* rows) const {
    const unsigned parts = blocks_of(sizes_.hidden, kSumColumns);
    const dim3 grid(parts * sequences(), blocks_of(sizes_.heads, kSumHeads));
    with_bool(sizes_.hidden % 2 == 0, [&]<bool kEven>() {
      sums_kernel<kEven><<<grid, kSumThreads, 0, call_.stream>>>(sizes_, int(parts), factors,
                                                                 data_of<T>(x), rows);
    });
    SNUG_CUDA_LAUNCHED("end_attention_sums");
  }
  template <class T>
  void token_gradient(const TokenGradient& a, T* dx) const {
    const unsigned parts = blocks_of(call_.batch->dims.longest, kGradientTokens);
    const dim3 grid(parts * sequences(), blocks_of(sizes_.hidden, kGradientColumns));
    with_bool(sizes_.hidden % 2 == 0, [&]<bool kEven>() {
      token_gradient_kernel<kEven><<<grid, kThreads, 0, call_.stream>>>(sizes_, int(parts), a, dx);
    });
    SNUG_CUDA_LAUNCHED("end_attention_token_gradient");
  }
  template <class T, class Y>
  void outer(const T* x, const Tensor& y, int head_stride, const Tensor& dw, int which) const {
    const dim3 grid(blocks_of(sizes_.hidden, kThreads),
                    unsigned(ceil_div(sizes_.head_dim, kOuterColumns) * sizes_.heads));
    const GatherArguments<Y> a{data_of<Y>(y), y.cols, head_stride};
    const auto start = [&](auto* to) {
      outer_kernel<<<grid, kThreads, 0, call_.stream>>>(sizes_, x, a, !call_.only_pass, to);
      SNUG_CUDA_LAUNCHED("end_attention_outer");
    };
    dw.dtype == DType::kF32 ? start(part<float>(dw, which)) : start(part<T>(dw, which));
  }

  const EndAttentionSpec& spec_;
  const Launch& call_;
  EndAttentionWorkspace space_;
  Sizes sizes_;
  DropoutMask mask_;
};

bool is_empty(const Launch& call) {
  return call.batch->dims.tokens == 0 || call.batch->dims.sequences == 0;
}

}  // namespace

void launch(const EndAttention& op, const Launch& call) {
  if (is_empty(call)) return;
  with_type(call.in[0].dtype,
            [&]<class T>() { EndAttentionLaunch(op.spec, call, false).template forward<T>(); });
}

void launch(const EndAttentionGradient& op, const Launch& call) {
  if (is_empty(call)) return;
  with_type(call.in[0].dtype, [&]<class T>() {
    EndAttentionLaunch(op.spec, call, true).template backward<T>(op.add_x, op.add_ends);
  });
}

}  // namespace snug::cuda
