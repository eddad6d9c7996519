// Kernels of ops/embedding.h. The gradients of the tables are gathered, not scattered: whoever owns
// a row of a table adds up the tokens that read it, in a fixed order.
#include "cuda/kernels.h"
#include "cuda/norm_rows.cuh"
#include "cuda/quantized.cuh"
#include "ops/embedding.h"

namespace snug::cuda {
namespace {

struct Tables {
  const void* word;              // fp32, or int8 where it has scales
  const float* word_scales;      // [vocab] or null
  const float *position, *type;  // type may be null
  int64_t position_offset;
};

template <bool kWhole>
__device__ Eight word_row(const Tables& tables, int64_t id, int column, int cols) {
  if (tables.word_scales) {
    return load_quantized<kWhole>(static_cast<const int8_t*>(tables.word) + id * cols, column, cols,
                                  tables.word_scales[id]);
  }
  return load_eight<kWhole>(static_cast<const float*>(tables.word) + id * cols, column, cols);
}

// word + position + type of a token, which forward and backward both add up.
template <bool kWhole>
__device__ Eight token_sum(const Tables& tables, const Batch& batch, int64_t token, int column,
                           int cols) {
  const int64_t position = batch.positions[token] + tables.position_offset;
  Eight sum = word_row<kWhole>(tables, batch.ids[token], column, cols);
  sum += load_eight<kWhole>(tables.position + position * cols, column, cols);
  if (tables.type) {
    sum += load_eight<kWhole>(tables.type + int64_t(batch.type_ids[token]) * cols, column, cols);
  }
  return sum;
}

template <class T>
struct ForwardArguments {
  Tables tables;
  const float *gamma, *beta;  // null without norm
  T* y;
  float* stats;  // or null
  int64_t rows;
  int cols;
  float eps;
  DropoutMask mask;
  Batch batch;
  const StepState* state;
};

template <class T, class Shape>
__global__ void __launch_bounds__(forward_threads<Shape>())
    embedding_kernel(const ForwardArguments<T> a) {
  constexpr bool kWhole = Shape::kWhole;
  const int64_t row =
      int64_t(blockIdx.x) * (forward_threads<Shape>() / Shape::kThreads) + Shape::group();
  if (row >= a.rows) return;
  const int cols = a.cols;
  T* const y = a.y + row * cols;
  if (row >= a.state->tokens) {
    store_zeros<Shape>(y, cols);
    store_stats<Shape>(a.stats, row, {});
    return;
  }
  Eight values[Shape::kVectors];
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
    const int column = Shape::column(v);
    if (column < cols) values[v] = token_sum<kWhole>(a.tables, a.batch, row, column, cols);
  }
  const MaskRow mask_row = a.mask.on() ? token_row(a.batch, token_place(a.batch, row)) : MaskRow();
  NormStats stats;
  if (a.gamma) stats = row_stats<Shape>(values, cols, a.eps);
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
    const int column = Shape::column(v);
    if (column >= cols) continue;
    if (a.gamma) {
      const Eight gamma = load_eight<kWhole>(a.gamma, column, cols),
                  beta = load_eight<kWhole>(a.beta, column, cols);
      values[v] = affine(values[v], stats, gamma, beta);
    }
    if (a.mask.on()) values[v] *= mask_factors(a.mask, mask_row, column);
    store_eight<kWhole>(y, column, cols, values[v]);
  }
  store_stats<Shape>(a.stats, row, stats);
}

template <class T>
struct SumGradientArguments {
  Tables tables;
  const float *stats, *gamma;  // null without norm
  T* dy;                       // becomes the gradient of the sum
  float* partials;             // [blocks, kNormSums, cols] of dgamma and dbeta, or null
  int cols;
  DropoutMask mask;
  Batch batch;
  const StepState* state;
};

constexpr int kNormSums = 2;

// dy := gradient of word + position + type. Rows behind the real ones stay as they are, which is
// zero.
template <class T, class Shape>
__global__ void __launch_bounds__(Walk<T, Shape>::kBlock, 1)
    embedding_sum_gradient_kernel(const SumGradientArguments<T> a) {
  using Rows = Walk<T, Shape>;
  constexpr int kRows = Rows::kRows;
  constexpr bool kWhole = Shape::kWhole;
  const int cols = a.cols;
  const int tokens = a.state->tokens, turns = Rows::turns(tokens);
  RowSums<Shape, Rows::kBlock, kNormSums> sums;
  Eight gamma[Shape::kVectors];
  if (a.gamma) load_columns<Shape>(a.gamma, cols, gamma);
  int64_t first = Rows::first();
  for (int turn = 0; turn < turns; first += Rows::step(), ++turn) {
    Eight dy[kRows][Shape::kVectors], values[kRows][Shape::kVectors];
    NormStats stats[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r;
      if (row >= tokens) continue;
      if (a.gamma) stats[r] = load_stats(a.stats, row);
      MaskRow mask_row;
      if (a.mask.on()) mask_row = token_row(a.batch, token_place(a.batch, row));
#pragma unroll
      for (int v = 0; v < Shape::kVectors; ++v) {
        const int column = Shape::column(v);
        if (column >= cols) continue;
        dy[r][v] = load_eight<kWhole>(a.dy + row * cols, column, cols);
        if (a.gamma) values[r][v] = token_sum<kWhole>(a.tables, a.batch, row, column, cols);
        if (a.mask.on()) dy[r][v] *= mask_factors(a.mask, mask_row, column);
      }
    }
    NormRowGradient gradients[kRows];
    if (a.gamma) {
      row_gradients<Shape>(stats, gamma, cols, turn, sums, gradients,
                           [&](int r, int v, Eight& dy_of, Eight& values_of) {
                             dy_of = dy[r][v];
                             values_of = values[r][v];
                           });
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= tokens) continue;
#pragma unroll
      for (int v = 0; v < Shape::kVectors; ++v) {
        const int column = Shape::column(v);
        if (column >= cols) continue;
        Eight ds = dy[r][v];
        if (a.gamma) {
#pragma unroll
          for (int i = 0; i < kEight; ++i) {
            ds.at[i] = gradients[r].at(dy[r][v].at[i], gamma[v].at[i], values[r][v].at[i]);
          }
        }
        store_eight<kWhole>(a.dy + (first + r) * cols, column, cols, ds);
      }
    }
  }
  if (a.partials) sums.write(a.partials, cols);
}

constexpr int kBlock = 256;
constexpr int kEnd = -1, kSkip = -2;  // what a list of tokens may hold beside tokens

// to[columns of the block] += the rows of ds that token_at(0), token_at(1), ... list, up to kEnd.
// kLanes threads share a row, so a block does 8 * kLanes columns and kBlock / kLanes rows at a
// time. All threads of the block must call it.
template <int kLanes, bool kWhole, class T, class TokenAt>
__device__ void add_listed_rows(const T* ds, int cols, float* to, const TokenAt& token_at) {
  constexpr int kRows = kBlock / kLanes, kInFlight = 8;
  static_assert(kBlock % (kRows * kInFlight) == 0);
  __shared__ int32_t tokens[kBlock];
  __shared__ float sums[kRows][kLanes * kEight];
  const int lane = int(threadIdx.x) % kLanes, own = int(threadIdx.x) / kLanes;
  const int first_column = int(blockIdx.y) * kLanes * kEight, column = first_column + lane * kEight;
  Eight sum;
  bool more = true;
  for (int base = 0; more; base += kBlock) {
    const int32_t token = token_at(base + int(threadIdx.x));
    __syncthreads();  // for readers of the last round
    tokens[threadIdx.x] = token;
    more = __syncthreads_and(token != kEnd);
    if (column >= cols) continue;
    for (int first = own; first < kBlock; first += kRows * kInFlight) {
      if (tokens[first] == kEnd) break;  // nothing comes behind an end
      Packed<T> rows[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int32_t listed = tokens[first + i * kRows];
        // No branch: all in flight at once.
        rows[i] = load<kWhole>(ds + int64_t(max(listed, 0)) * cols, column, cols);
        if (listed < 0) rows[i] = {};
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) sum += unpack(rows[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) sums[own][i * kLanes + lane] = sum.at[i];
  __syncthreads();
  for (int i = int(threadIdx.x); i < kLanes * kEight; i += kBlock) {
    float total = 0.0f;
#pragma unroll 8
    for (int row = 0; row < kRows; ++row) total += sums[row][i];
    const int target = first_column + i % kLanes * kEight + i / kLanes;
    if (target < cols) to[target] += total;
  }
}

template <class T>
struct TableArguments {
  const T* ds;
  float* gradient;
  int cols;
  Batch batch;
  const StepState* state;
  int64_t padding_id;       // of words
  int64_t position_offset;  // of positions
};

// The tokens of one word are a run in batch.by_id. Short runs are added by a warp each, long ones
// by whole blocks.
constexpr int kShortRun = 16;

__device__ inline int32_t id_at(const Batch& batch, int place) {
  return batch.ids[batch.by_id[place]];
}

// One warp per place in by_id and 256 columns; those where a short run begins do it.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kBlock) short_runs_kernel(const TableArguments<T> a) {
  constexpr int kInFlight = 4;
  const int lane = int(threadIdx.x) % kWarp, tokens = a.state->tokens, cols = a.cols;
  const int place = int(blockIdx.x) * (kBlock / kWarp) + int(threadIdx.x) / kWarp;
  if (place >= tokens) return;
  // Lane 0 looks at the place before, lane 1 at this one, and so on.
  const int looked = place - 1 + lane;
  const int32_t token = looked >= 0 && looked < tokens ? a.batch.by_id[looked] : -1;
  const int32_t id = token >= 0 ? a.batch.ids[token] : -1;
  const int32_t mine = __shfl_sync(0xffffffffu, id, 1);
  const uint32_t same = __ballot_sync(0xffffffffu, id == mine) >> 1;
  const int length = __ffs(~same) - 1;  // up to 31 are seen, longer than a short run
  const bool begins = __shfl_sync(0xffffffffu, id, 0) != mine;
  const int column = (int(blockIdx.y) * kWarp + lane) * kEight;
  if (!begins || length > kShortRun || mine == a.padding_id) return;
  Eight sum;
  for (int first = 0; first < length; first += kInFlight) {
    Packed<T> rows[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int32_t from = __shfl_sync(0xffffffffu, token, min(first + i, length - 1) + 1);
      if (column < cols) rows[i] = load<kWhole>(a.ds + int64_t(from) * cols, column, cols);
      if (first + i >= length) rows[i] = {};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum += unpack(rows[i]);
  }
  if (column >= cols) return;
  float* const to = a.gradient + int64_t(mine) * cols;
  sum += load_eight<kWhole>(to, column, cols);
  store_eight<kWhole>(to, column, cols, sum);
}

constexpr int kRunLanes = 8;
constexpr int kFewBlocks = 4;  // per multiprocessor: leaves registers for all the rows in flight

// A block looks at 256 places for long runs that begin there, and does 64 columns of each.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kBlock, kFewBlocks) long_runs_kernel(const TableArguments<T> a) {
  __shared__ uint32_t found[kBlock / kWarp];
  const int tokens = a.state->tokens, window = int(blockIdx.x) * kBlock,
            place = window + int(threadIdx.x);
  bool begins = false;
  if (place + kShortRun < tokens) {
    const int32_t id = id_at(a.batch, place);
    begins = id != a.padding_id && id == id_at(a.batch, place + kShortRun) &&
             (place == 0 || id != id_at(a.batch, place - 1));
  }
  const uint32_t of_warp = __ballot_sync(0xffffffffu, begins);
  if (threadIdx.x % kWarp == 0) found[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  for (int warp = 0; warp < kBlock / kWarp; ++warp) {
    for (uint32_t left = found[warp]; left != 0; left &= left - 1) {
      const int begin = window + warp * kWarp + __ffs(left) - 1;
      const int32_t id = id_at(a.batch, begin);
      add_listed_rows<kRunLanes, kWhole>(a.ds, a.cols, a.gradient + int64_t(id) * a.cols,
                                         [&](int n) {
                                           if (begin + n >= tokens) return kEnd;
                                           const int32_t token = a.batch.by_id[begin + n];
                                           return a.batch.ids[token] == id ? int(token) : kEnd;
                                         });
    }
  }
}

// A block per position and 256 columns: the tokens there of all sequences that are long enough.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kBlock, kFewBlocks) positions_kernel(const TableArguments<T> a) {
  const int position = int(blockIdx.x), sequences = a.state->sequences;
  add_listed_rows<kWarp, kWhole>(a.ds, a.cols, a.gradient + (position + a.position_offset) * a.cols,
                                 [&](int s) {
                                   if (s >= sequences) return kEnd;
                                   const int token = a.batch.starts[s] + position;
                                   return token < a.batch.starts[s + 1] ? token : kSkip;
                                 });
}

// Sums of the rows of two types, `first` and the next.
template <class T, bool kWhole>
struct TypesTerm {
  static constexpr int kSums = 2, kInFlight = 4;
  struct Loaded {
    Packed<T> ds;
    int32_t type;
  };
  const T* ds;
  int cols;
  const int32_t* type_ids;
  int first;
  const StepState* state;

  __device__ Loaded load(int64_t row, int column) const {
    if (row >= state->tokens) return {{}, -1};
    return {cuda::load<kWhole>(ds + row * cols, column, cols), type_ids[row] - first};
  }
  __device__ void add(const Loaded& loaded, int64_t, int, Eight* sums) const {
    const Eight values = unpack(loaded.ds);
    if (loaded.type == 0) sums[0] += values;
    if (loaded.type == 1) sums[1] += values;
  }
};

template <class T>
void launch_sum_gradient(SumGradientArguments<T> arguments, int64_t rows, const SumTargets& targets,
                         const Launch& call) {
  with_column_shape(arguments.cols, [&]<class Shape>() {
    using Rows = Walk<T, Shape>;
    const int64_t blocks = Rows::blocks(rows);
    const size_t bytes = piece_bytes(blocks, kNormSums, arguments.cols);
    arguments.partials =
        targets ? room_for_pieces(call.pending, bytes, call.workspace, call.stream) : nullptr;
    embedding_sum_gradient_kernel<T, Shape>
        <<<unsigned(blocks), Rows::kBlock, 0, call.stream>>>(arguments);
    SNUG_CUDA_LAUNCHED("embedding_sum_gradient");
    if (targets) {
      add_pieces(call.pending, {arguments.partials, blocks, kNormSums, arguments.cols, targets},
                 call.stream);
    }
  });
}

template <class T, bool kWhole>
void launch_words(const TableArguments<T>& arguments, int64_t tokens, cudaStream_t stream) {
  const unsigned warp_chunks = unsigned(ceil_div(arguments.cols, kWarp * kEight));
  const dim3 warps(unsigned(ceil_div(tokens, kBlock / kWarp)), warp_chunks);
  short_runs_kernel<T, kWhole><<<warps, kBlock, 0, stream>>>(arguments);
  SNUG_CUDA_LAUNCHED("short_runs");
  const dim3 windows(unsigned(ceil_div(tokens, kBlock)),
                     unsigned(ceil_div(arguments.cols, kRunLanes * kEight)));
  long_runs_kernel<T, kWhole><<<windows, kBlock, 0, stream>>>(arguments);
  SNUG_CUDA_LAUNCHED("long_runs");
}

template <class T, bool kWhole>
void launch_positions(const TableArguments<T>& arguments, int64_t longest, cudaStream_t stream) {
  const dim3 grid(unsigned(longest), unsigned(ceil_div(arguments.cols, kWarp * kEight)));
  positions_kernel<T, kWhole><<<grid, kBlock, 0, stream>>>(arguments);
  SNUG_CUDA_LAUNCHED("positions");
}

template <class T, bool kWhole>
void launch_types(const T* ds, int64_t rows, const Tensor& dtypes, float* partials,
                  const Launch& call) {
  const int64_t cols = dtypes.cols;
  for (int64_t type = 0; type < dtypes.rows; type += 2) {
    const TypesTerm<T, kWhole> term = {ds, int(cols), call.batch->type_ids, int(type), call.state};
    float* const first = dtypes.f32() + type * cols;
    const SumTargets targets = {{first, type + 1 < dtypes.rows ? first + cols : nullptr}};
    launch_column_sums(term, rows, cols, partials, targets, call.stream);
  }
}

// `all` begins with the tables of words, positions and types.
Tables tables_of(std::span<const Tensor> all, const Tensor& word_scales, int64_t position_offset) {
  SNUG_CHECK((all[0].dtype == DType::kI8) == bool(word_scales));
  return {all[0].data, word_scales.f32(), all[1].f32(), all[2].f32(), position_offset};
}

}  // namespace

void launch(const Embedding& op, const Launch& call) {
  const EmbeddingSpec& spec = op.spec;
  const Tensor& y = call.out[0];
  SNUG_CHECK(y.cols == spec.hidden && call.in[0].cols == spec.hidden);
  with_type(y.dtype, [&]<class T>() {
    const ForwardArguments<T> arguments = {
        .tables =
            tables_of(call.in, call.in.size() > 5 ? call.in[5] : Tensor(), spec.position_offset),
        .gamma = spec.norm ? call.in[3].f32() : nullptr,
        .beta = spec.norm ? call.in[4].f32() : nullptr,
        .y = data_of<T>(y),
        .stats = spec.norm ? call.out[1].f32() : nullptr,
        .rows = y.rows,
        .cols = int(y.cols),
        .eps = spec.eps,
        .mask = dropout_mask(spec.dropout, spec.site, *call.step),
        .batch = *call.batch,
        .state = call.state};
    with_row_shape(y.cols, [&]<class Shape>() {
      embedding_kernel<T, Shape>
          <<<forward_blocks<Shape>(y.rows), forward_threads<Shape>(), 0, call.stream>>>(arguments);
      SNUG_CUDA_LAUNCHED("embedding");
    });
  });
}

void launch(const EmbeddingGradient& op, const Launch& call) {
  const EmbeddingSpec& spec = op.spec;
  const Tensor &dy = call.in[0], &dword = call.out[1], &dposition = call.out[2],
               &dtypes = call.out[3];
  const SumTargets norm_targets = {{call.out[4].f32(), call.out[5].f32()}};
  SNUG_CHECK(call.workspace.size() >= column_sum_bytes(dy.cols, 2));
  // Of one sum after the other.
  float* const partials = reinterpret_cast<float*>(call.workspace.data());
  with_type(dy.dtype, [&]<class T>() {
    const DropoutMask mask = dropout_mask(spec.dropout, spec.site, *call.step);
    if (spec.norm || mask.on()) {
      launch_sum_gradient<T>(
          {.tables = tables_of(call.in.subspan(2), call.in.size() > 6 ? call.in[6] : Tensor(),
                               spec.position_offset),
           .stats = spec.norm ? call.in[1].f32() : nullptr,
           .gamma = spec.norm ? call.in[5].f32() : nullptr,
           .dy = data_of<T>(dy),
           .cols = int(dy.cols),
           .mask = mask,
           .batch = *call.batch,
           .state = call.state},
          dy.rows, norm_targets, call);
    }
    with_bool(dy.cols % kEight == 0, [&]<bool kWhole>() {
      TableArguments<T> arguments = {.ds = data_of<T>(dy),
                                     .gradient = dword.f32(),
                                     .cols = int(dy.cols),
                                     .batch = *call.batch,
                                     .state = call.state,
                                     .padding_id = spec.padding_id,
                                     .position_offset = spec.position_offset};
      if (dword) launch_words<T, kWhole>(arguments, dy.rows, call.stream);
      arguments.gradient = dposition.f32();
      const int64_t longest =
          std::min(call.batch->dims.longest, dposition.rows - spec.position_offset);
      if (dposition) launch_positions<T, kWhole>(arguments, longest, call.stream);
      if (dtypes) launch_types<T, kWhole>(data_of<T>(dy), dy.rows, dtypes, partials, call);
    });
  });
}

}  // namespace snug::cuda
