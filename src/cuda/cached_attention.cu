// Kernel of ops/cached_attention.h: one block per token and head, whose warps share the keys. Where
// some neighbouring tokens are of one text, as in a prompt, a block does them at once; that is seen
// from the batch on the device, since one captured graph serves prompts and single tokens.
//
// Keys and values of the micro-batch itself are read where the layer left them, in qkv, and those
// before from the cache; so the block that writes a token's row of the cache races with nobody, and
// no second kernel is needed. Sums are taken in an order that depends on a token's position alone:
// it gets the same bits in a prompt and by itself.
#include <cmath>

#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "ops/cached_attention.h"

namespace snug::cuda {
namespace {

constexpr int kWarps = 16, kBlock = kWarps * kWarp;
constexpr int kPair = 2;  // keys between two looks at the maximum
constexpr float kLog2E = 1.44269504f;
constexpr float kLowest = -1e30f;  // below every score; finite, so that two may be subtracted

template <class T>
struct Arguments {
  const T* qkv;  // [rows, 3 * hidden]
  T* o;          // [rows, hidden]
  T* cache;      // [texts * context, 2 * hidden]
  int heads, head_dim, hidden;
  int64_t context;
  int64_t rows;
  int tokens_of_block;  // 1, or as many as it may do at once
  float scale;          // of scores, in units of log 2
  Batch batch;
  const StepState* state;
};

// Tokens a block does at once.
template <int kLanes>
constexpr int kTile = kLanes == kWarp ? 2 : 4;

// A softmax-weighted sum under way: the largest score, the sum of weights, and eight columns of the
// weighted values.
struct Sum {
  float most = kLowest, weights = 0.0f;
  Eight values;

  __device__ void raise(float to) {  // to >= most
    const float factor = exp2_of(most - to);
    most = to;
    weights = __fmul_rn(weights, factor);  // not to become half of a multiply-add here and there
#pragma unroll
    for (int i = 0; i < kEight; ++i) values.at[i] = __fmul_rn(values.at[i], factor);
  }
  __device__ void add(const Sum& other) {  // with the same `most`
    weights += other.weights;
    values += other.values;
  }
};

__device__ inline Sum exchanged(const Sum& sum, int step) {
  Sum other;
  other.most = __shfl_xor_sync(0xffffffffu, sum.most, step);
  other.weights = __shfl_xor_sync(0xffffffffu, sum.weights, step);
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    other.values.at[i] = __shfl_xor_sync(0xffffffffu, sum.values.at[i], step);
  }
  return other;
}

// What warps leave for each other.
template <int kLanes, int kQueries>
struct WarpSums {
  float most[kQueries][kWarps], weights[kQueries][kWarps];
  float values[kQueries][kWarps][kLanes * kEight];
};

// kLanes lanes share a key, eight columns each; kWarps * kGroups keys are looked at side by side.
template <class T, int kLanes, bool kWhole, int kQueries>
struct Attend {
  static constexpr int kGroups = kWarp / kLanes, kStep = kWarps * kGroups;
  // Keys a group has on their way at once: one token has nothing but them to hide the memory's
  // latency.
  static constexpr int kPairs = kQueries == 1 && sizeof(T) == 2 ? 2 : 1;

  const Arguments<T>& a;
  int head, token;                  // the first one's
  int position;                     // of that token
  int first_token, first_position;  // of the text in this micro-batch
  T* cached;                        // k of position 0
  const T* fresh;                   // k of first_position
  int column;                       // of the head, this lane's first

  __device__ Attend(const Arguments<T>& a, int head, int token) : a(a), head(head), token(token) {
    const int sequence = a.batch.row_of[token];
    position = a.batch.positions[token];
    first_token = a.batch.starts[sequence];
    first_position = position - (token - first_token);
    cached =
        a.cache + int64_t(a.batch.samples[sequence]) * a.context * 2 * a.hidden + head * a.head_dim;
    fresh = a.qkv + int64_t(first_token) * 3 * a.hidden + a.hidden + head * a.head_dim;
    column = int(threadIdx.x) % kLanes * kEight;
  }

  __device__ const T* query(int n) const {
    return a.qkv + int64_t(token + n) * 3 * a.hidden + head * a.head_dim;
  }

  // k and v of the tokens, by the first threads.
  __device__ void write_cache() const {
    static_assert(kQueries * 2 * kLanes <= kBlock);
    const int n = int(threadIdx.x) / (2 * kLanes), half = int(threadIdx.x) / kLanes % 2;
    if (n >= kQueries || column >= a.head_dim) return;
    const T* const from = query(n) + (1 + half) * a.hidden;
    T* const to = cached + int64_t(position + n) * 2 * a.hidden + half * a.hidden;
    store<kWhole>(to, column, a.head_dim, load<kWhole>(from, column, a.head_dim));
  }

  __device__ void run(WarpSums<kLanes, kQueries>& shared) const {
    Eight q[kQueries];
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      if (column < a.head_dim) q[n] = load_eight<kWhole>(query(n), column, a.head_dim);
#pragma unroll
      for (int i = 0; i < kEight; ++i) q[n].at[i] *= a.scale;
    }
    write_cache();
    Sum sums[kQueries];
    const int group = int(threadIdx.x) / kLanes, last = position + kQueries - 1;
    for (int base = group; base - group <= last;
         base += kPairs * kPair * kStep) {  // all lanes stay: they exchange
      Packed<T> k[kPairs * kPair], v[kPairs * kPair];
#pragma unroll
      for (int u = 0; u < kPairs * kPair; ++u) {
        const int key = base + u * kStep;
        if (key > last || column >= a.head_dim) continue;
        const T* const at = key < first_position
                                ? cached + int64_t(key) * 2 * a.hidden
                                : fresh + int64_t(key - first_position) * 3 * a.hidden;
        k[u] = load<kWhole>(at, column, a.head_dim);
        v[u] = load<kWhole>(at + a.hidden, column, a.head_dim);
      }
#pragma unroll
      for (int u = 0; u < kPairs * kPair; u += kPair) {
        add_pair(q, base + u * kStep, k + u, v + u, sums);
      }
    }
    join_groups(sums);
    leave(sums, shared);
    __syncthreads();
    write(shared);
  }

  // The keys `key` and `key + kStep`. One that a query does not see has weight zero, which changes
  // no bit.
  __device__ void add_pair(const Eight (&q)[kQueries], int key, const Packed<T>* k,
                           const Packed<T>* v, Sum (&sums)[kQueries]) const {
    float scores[kQueries][kPair];
#pragma unroll
    for (int u = 0; u < kPair; ++u) {
      const Eight values = unpack(k[u]);
#pragma unroll
      for (int n = 0; n < kQueries; ++n) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < kEight; ++i) score = fmaf(q[n].at[i], values.at[i], score);
        score = lanes_sum<kLanes>(score);
        scores[n][u] = key + u * kStep <= position + n ? score : -INFINITY;
      }
    }
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      sums[n].raise(fmaxf(sums[n].most, fmaxf(scores[n][0], scores[n][1])));
#pragma unroll
      for (int u = 0; u < kPair; ++u) {
        scores[n][u] = exp2_of(scores[n][u] - sums[n].most);
        sums[n].weights += scores[n][u];
      }
    }
#pragma unroll
    for (int u = 0; u < kPair; ++u) {
      const Eight values = unpack(v[u]);
#pragma unroll
      for (int n = 0; n < kQueries; ++n) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
          sums[n].values.at[i] = fmaf(scores[n][u], values.at[i], sums[n].values.at[i]);
        }
      }
    }
  }

  // Over the groups of a warp.
  static __device__ void join_groups(Sum (&sums)[kQueries]) {
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
#pragma unroll
      for (int step = kLanes; step < kWarp; step *= 2) {
        Sum other = exchanged(sums[n], step);
        const float most = fmaxf(sums[n].most, other.most);
        sums[n].raise(most);
        other.raise(most);
        sums[n].add(other);
      }
    }
  }

  __device__ void leave(const Sum (&sums)[kQueries], WarpSums<kLanes, kQueries>& shared) const {
    const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
    if (lane >= kLanes) return;
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      if (lane == 0) shared.most[n][warp] = sums[n].most, shared.weights[n][warp] = sums[n].weights;
#pragma unroll
      for (int i = 0; i < kEight; ++i) shared.values[n][warp][column + i] = sums[n].values.at[i];
    }
  }

  // A thread per column of a token: adds up the warps.
  __device__ void write(const WarpSums<kLanes, kQueries>& shared) const {
    for (int at = int(threadIdx.x); at < kQueries * a.head_dim; at += kBlock) {
      const int n = at / a.head_dim, own = at - n * a.head_dim;
      float most = kLowest;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) most = fmaxf(most, shared.most[n][w]);
      float weights = 0.0f, value = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float factor = exp2_of(shared.most[n][w] - most);
        weights = fmaf(shared.weights[n][w], factor, weights);
        value = fmaf(shared.values[n][w][own], factor, value);
      }
      a.o[int64_t(token + n) * a.hidden + head * a.head_dim + own] = from_float<T>(value / weights);
    }
  }
};

template <class T, int kLanes, bool kWhole>
__global__ void __launch_bounds__(kBlock, 1) cached_attention_kernel(const Arguments<T> a) {
  constexpr int kQueries = kTile<kLanes>;
  __shared__ union {
    WarpSums<kLanes, 1> one;
    WarpSums<kLanes, kQueries> tile;
  } shared;
  const int head = int(blockIdx.x) % a.heads, begin = int(blockIdx.x) / a.heads * a.tokens_of_block;
  const int end = int(min(a.rows, int64_t(begin + a.tokens_of_block))), tokens = a.state->tokens;
  for (int token = begin; token < end; ++token) {
    if (token >= tokens) {
      T* const o = a.o + int64_t(token) * a.hidden + head * a.head_dim;
      for (int at = int(threadIdx.x); at < a.head_dim; at += kBlock) o[at] = from_float<T>(0.0f);
      continue;
    }
    const int first = token / kQueries * kQueries, last = first + kQueries - 1;
    const bool together = last < tokens && a.batch.row_of[first] == a.batch.row_of[last];
    if (together && token != first) continue;
    __syncthreads();  // the token before is done with `shared`
    if (together) {
      Attend<T, kLanes, kWhole, kQueries>(a, head, token).run(shared.tile);
    } else {
      Attend<T, kLanes, kWhole, 1>(a, head, token).run(shared.one);
    }
  }
}

// Few tokens have a block each, to be done soon; of many, a block has as many as it may do at once,
// since blocks that come for nothing take time too.
constexpr int64_t kFewBlocks = 16 * kMultiprocessors;

template <class T, int kLanes, bool kWhole>
void start(Arguments<T> arguments, cudaStream_t stream) {
  if (arguments.rows * arguments.heads > kFewBlocks) arguments.tokens_of_block = kTile<kLanes>;
  const int64_t blocks = ceil_div(arguments.rows, arguments.tokens_of_block) * arguments.heads;
  cached_attention_kernel<T, kLanes, kWhole><<<unsigned(blocks), kBlock, 0, stream>>>(arguments);
  SNUG_CUDA_LAUNCHED("cached_attention");
}

}  // namespace

void launch(const CachedAttention& op, const Launch& call) {
  const Tensor &qkv = call.in[0], &o = call.out[0], &cache = call.out[1];
  const int64_t hidden = op.spec.heads * op.spec.head_dim;
  SNUG_CHECK(qkv.cols == 3 * hidden && o.cols == hidden && cache.cols == 2 * hidden &&
             qkv.dtype == o.dtype && qkv.dtype == cache.dtype &&
             op.spec.head_dim <= kWarp * kEight && o.rows * op.spec.heads < int64_t{1} << 31);
  if (o.rows == 0) return;
  with_type(qkv.dtype, [&]<class T>() {
    const Arguments<T> arguments = {.qkv = data_of<T>(qkv),
                                    .o = data_of<T>(o),
                                    .cache = data_of<T>(cache),
                                    .heads = int(op.spec.heads),
                                    .head_dim = int(op.spec.head_dim),
                                    .hidden = int(hidden),
                                    .context = op.spec.context,
                                    .rows = o.rows,
                                    .tokens_of_block = 1,
                                    .scale = kLog2E / std::sqrt(float(op.spec.head_dim)),
                                    .batch = *call.batch,
                                    .state = call.state};
    const int head_dim = arguments.head_dim;
    if (head_dim % kEight != 0) {  // not of any known model
      return head_dim <= 64 ? start<T, 8, false>(arguments, call.stream)
                            : start<T, 32, false>(arguments, call.stream);
    }
    if (head_dim <= 32) return start<T, 4, true>(arguments, call.stream);
    if (head_dim <= 64) return start<T, 8, true>(arguments, call.stream);
    if (head_dim <= 128) return start<T, 16, true>(arguments, call.stream);
    start<T, 32, true>(arguments, call.stream);
  });
}

}  // namespace snug::cuda
