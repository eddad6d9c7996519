// Kernels of ops/residual_norm.h: ResidualNorm, LayerNorm, their output made again, and their
// gradient.
#include "cuda/kernels.h"
#include "cuda/norm_rows.cuh"
#include "ops/residual_norm.h"

namespace snug::cuda {
namespace {

// Rows are counted in 32 bits, which takes a fifth fewer instructions.
int row_count(const Tensor& tensor) {
  SNUG_CHECK(tensor.rows < int64_t{1} << 30);
  return int(tensor.rows);
}
// Rows below zero are not there either.
__device__ inline bool is_there(int row, int real) { return uint32_t(row) < uint32_t(real); }
__device__ inline size_t row_offset(int row, int cols) {
  return size_t(uint32_t(row)) * uint32_t(cols);
}

template <class T>
struct ForwardArguments {
  const T* x;  // ResidualNorm only
  const T* residual;
  const float *gamma, *beta;
  T* y;
  T* sum;        // or null
  float* stats;  // or null
  int rows, cols;
  float eps;
  DropoutMask mask;
  snug::Rows rows_are;
  Batch batch;
  const StepState* state;
  bool forgets_x;
};

// Blocks per multiprocessor: a group has one row in hand and the next one on its way, all in
// registers.
template <class T, class Shape>
constexpr int forward_residency() {
  const int threads = (Shape::kVectors > 3 ? 512 : 640) / (sizeof(T) == sizeof(float) ? 2 : 1);
  return std::max(threads / forward_threads<Shape>(), 1);
}

// kAdds: a ResidualNorm; otherwise the residual alone is normalised.
template <class T, class Shape, bool kAdds>
struct ForwardRow {
  Packed<T> x[Shape::kVectors], residual[Shape::kVectors];
  TokenPlace place;

  __device__ void fetch(const ForwardArguments<T>& a, int row, int real) {
    if (row < 0) return;
    const int cols = Shape::width(a.cols);
    const size_t at = row_offset(row, cols);
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      const int column = Shape::column(v);
      if (column >= cols) continue;
      residual[v] = load<Shape::kWhole, Reuse::kLate>(a.residual + at, column, cols);
      if (kAdds) x[v] = load<Shape::kWhole, Reuse::kLate>(a.x + at, column, cols);
    }
    if (kAdds && a.mask.on() && row < real) place = row_place(a.batch, a.rows_are, row);
  }
};

template <class T, class Shape, bool kAdds>
__global__ void __launch_bounds__(forward_threads<Shape>(), forward_residency<T, Shape>())
    norm_forward_kernel(const ForwardArguments<T> a) {
  constexpr bool kWhole = Shape::kWhole;
  constexpr int kGroups = forward_threads<Shape>() / Shape::kThreads;
  const int cols = Shape::width(a.cols);
  const int real = real_rows(*a.state, a.rows_are), step = int(gridDim.x) * kGroups;
  int row = from_the_end(a.rows, int(blockIdx.x) * kGroups + Shape::group());
  ForwardRow<T, Shape, kAdds> next;
  next.fetch(a, row, real);
  for (; row >= 0; row -= step) {
    const size_t at = row_offset(row, cols);
    const ForwardRow<T, Shape, kAdds> now = next;
    MaskRow mask_row;
    if (kAdds && a.mask.on() && row < real) mask_row = token_row(a.batch, now.place);
    next.fetch(a, row - step, real);
    Draws draws[Shape::kVectors] = {};
    if (kAdds && a.mask.on()) {
#pragma unroll
      for (int v = 0; v < Shape::kVectors; ++v) {
        draws[v] = mask_draws(a.mask, mask_row, Shape::column(v));
      }
    }
    if (row >= real) {
      store_zeros<Shape>(a.y + at, cols);
      if (kAdds && a.sum) store_zeros<Shape>(a.sum + at, cols);
      store_stats<Shape>(a.stats, row, {});
      continue;
    }
    Eight sums[Shape::kVectors];
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      const int column = Shape::column(v);
      if (column >= cols) continue;
      Packed<T> rounded = now.residual[v];
      if constexpr (kAdds) {
        Eight values = unpack(now.residual[v]);
        const Eight add = unpack(now.x[v]), factors = mask_factors(a.mask, draws[v]);
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
          values.at[i] = fmaf(add.at[i], factors.at[i], values.at[i]);
        }
        rounded = pack<T>(values);
        if (a.sum) store<kWhole, Reuse::kLate>(a.sum + at, column, cols, rounded);
      }
      sums[v] = unpack(rounded);  // as stored, so that backward sees the same numbers
    }
    const NormStats stats = row_stats<Shape>(sums, cols, a.eps);
    if (kAdds && a.forgets_x) forget_row<Shape>(a.x + at, cols);
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      const int column = Shape::column(v);
      if (column >= cols) continue;
      const Eight gamma = load_eight<kWhole>(a.gamma, column, cols),
                  beta = load_eight<kWhole>(a.beta, column, cols);
      store_eight<kWhole>(a.y + at, column, cols, affine(sums[v], stats, gamma, beta));
    }
    store_stats<Shape>(a.stats, row, stats);
  }
}

template <bool kAdds, class T>
void launch_forward(const ForwardArguments<T>& arguments, cudaStream_t stream) {
  with_row_shape(arguments.cols, [&]<class Shape>() {
    const unsigned at_once = unsigned(kMultiprocessors * forward_residency<T, Shape>());
    const unsigned blocks = std::min(forward_blocks<Shape>(arguments.rows), at_once);
    norm_forward_kernel<T, Shape, kAdds>
        <<<blocks, forward_threads<Shape>(), 0, stream>>>(arguments);
    SNUG_CUDA_LAUNCHED("norm_forward");
  });
}

// y as norm_forward_kernel has computed it from the same sum and statistics.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kPlaceBlock)
    norm_again_kernel(const T* sum, const float* stats, const float* gamma, const float* beta, T* y,
                      int64_t rows, int cols, const StepState* state) {
  const auto [row, column] = place(cols);
  if (row >= rows) return;
  Eight values{};
  if (row < state->tokens) {
    values =
        affine(load_eight<kWhole>(sum + row * cols, column, cols), load_stats(stats, row),
               load_eight<kWhole>(gamma, column, cols), load_eight<kWhole>(beta, column, cols));
  }
  store_eight<kWhole>(y + row * cols, column, cols, values);
}

constexpr int kNormSums = 3;  // dgamma, dbeta, and dx's sum over rows

template <class T>
struct BackwardArguments {
  const T *dy, *dsum /* or null */, *sum;
  const float *stats, *gamma;
  T *dresidual, *dx;  // each may be null
  bool add_residual, add_x;

  // What norms behind sums mostly are: both gradients are written, and nothing is added to them.
  bool plain() const { return !dsum && dresidual && dx && !add_residual && !add_x; }

  bool forgets_dy;
  float* partials;  // [blocks, kNormSums, cols]; null where no parameter wants its gradient
  int rows, cols;
  DropoutMask mask;
  snug::Rows rows_are;
  Batch batch;
  const StepState* state;
};

template <class T, class Shape>
struct BackwardRows {
  static constexpr int kRows = Walk<T, Shape>::kRows;
  Packed<T> dy[kRows][Shape::kVectors], sum[kRows][Shape::kVectors];
  NormStats stats[kRows];
  TokenPlace place[kRows];

  __device__ void fetch(const BackwardArguments<T>& a, int last, int real) {
    const int cols = Shape::width(a.cols);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = last - r;
      const bool there = is_there(row, real);  // if not, it adds nothing, and its gradient is zero
      const size_t at = row_offset(row, cols);
      stats[r] = there ? load_stats(a.stats, row) : NormStats();
#pragma unroll
      for (int v = 0; v < Shape::kVectors; ++v) {
        const int column = Shape::column(v);
        const bool loads = there && column < cols;
        dy[r][v] = loads ? load<Shape::kWhole, Reuse::kLate>(a.dy + at, column, cols) : Packed<T>();
        sum[r][v] =
            loads ? load<Shape::kWhole, Reuse::kLate>(a.sum + at, column, cols) : Packed<T>();
      }
      place[r] = there && a.mask.on() ? row_place(a.batch, a.rows_are, row) : TokenPlace();
    }
  }
};

// to = or += values, at a column of a row.
template <bool kWhole, Reuse kReuse, class T>
__device__ void put(T* row, int column, int cols, const Eight& values, bool add) {
  if (add) {
    Eight total = values;
    total += load_eight<kWhole>(row, column, cols);
    store_eight<kWhole, kReuse>(row, column, cols, total);
  } else {
    store_eight<kWhole, kReuse>(row, column, cols, values);
  }
}

// kPlain: a.plain() is known to hold.
template <class T, class Shape, bool kPlain>
__global__ void __launch_bounds__(Walk<T, Shape>::kBlock, 1)
    norm_backward_kernel(const BackwardArguments<T> a) {
  using Rows = Walk<T, Shape>;
  constexpr int kRows = Rows::kRows;
  constexpr bool kWhole = Shape::kWhole;
  const int cols = Shape::width(a.cols);
  const int real = real_rows(*a.state, a.rows_are), step = int(Rows::step()),
            turns = Rows::turns(a.rows);
  RowSums<Shape, Rows::kBlock, kNormSums> sums;
  Eight gamma[Shape::kVectors];
  BackwardRows<T, Shape> next;
  int last = from_the_end(a.rows, int(Rows::first()));
  next.fetch(a, last, real);
  load_columns<Shape>(a.gamma, cols, gamma);
#pragma unroll(kPlain ? 2 : 1)  // else what is fetched would be moved
  for (int turn = 0; turn < turns; last -= step, ++turn) {
    const BackwardRows<T, Shape> now = next;
    MaskRow mask_rows[kRows];
    Packed<T> dsum[kRows][Shape::kVectors];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (a.mask.on()) mask_rows[r] = token_row(a.batch, now.place[r]);
      if (kPlain || !a.dsum || !is_there(last - r, real)) continue;
      const size_t at = row_offset(last - r, cols);
#pragma unroll
      for (int v = 0; v < Shape::kVectors; ++v) {
        const int column = Shape::column(v);
        if (column < cols) dsum[r][v] = load<kWhole, Reuse::kLate>(a.dsum + at, column, cols);
      }
    }
    next.fetch(a, last - step, real);
    NormRowGradient gradients[kRows];
    row_gradients<Shape>(now.stats, gamma, cols, turn, sums, gradients,
                         [&](int r, int v, Eight& dy, Eight& values) {
                           dy = unpack(now.dy[r][v]);
                           values = unpack(now.sum[r][v]);
                         });
    if (kPlain && a.forgets_dy) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (last >= r) forget_row<Shape>(a.dy + row_offset(last - r, cols), cols);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (last < r) continue;
      const size_t at = row_offset(last - r, cols);
#pragma unroll
      for (int v = 0; v < Shape::kVectors; ++v) {
        const int column = Shape::column(v);
        if (column >= cols) continue;
        const Eight dy = unpack(now.dy[r][v]), values = unpack(now.sum[r][v]);
        Eight ds;
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
          ds.at[i] = gradients[r].at(dy.at[i], gamma[v].at[i], values.at[i]);
        }
        if (!kPlain && a.dsum) ds += unpack(dsum[r][v]);
        if (kPlain || a.dresidual) {
          put<kWhole, Reuse::kLate>(a.dresidual + at, column, cols, ds, !kPlain && a.add_residual);
        }
        if (kPlain || a.dx) {
          if (a.mask.on()) ds *= mask_factors(a.mask, mask_rows[r], column);
          sums.of[2][v] += ds;
          put<kWhole, Reuse::kSoon>(a.dx + at, column, cols, ds, !kPlain && a.add_x);
        }
      }
    }
  }
  if (a.partials) sums.write(a.partials, cols);
}

}  // namespace

void launch(const ResidualNorm& op, const Launch& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == op.spec.hidden && y.cols == op.spec.hidden && x.rows == y.rows);
  with_type(y.dtype, [&]<class T>() {
    launch_forward<true, T>({.x = data_of<T>(x),
                             .residual = data_of<T>(call.in[1]),
                             .gamma = call.in[2].f32(),
                             .beta = call.in[3].f32(),
                             .y = data_of<T>(y),
                             .sum = data_of<T>(call.out[1]),
                             .stats = call.out[2].f32(),
                             .rows = row_count(y),
                             .cols = int(y.cols),
                             .eps = op.spec.eps,
                             .mask = dropout_mask(op.spec.dropout, op.spec.site, *call.step),
                             .rows_are = op.spec.rows,
                             .batch = *call.batch,
                             .state = call.state,
                             .forgets_x = call.dies(0) && has_whole_lines<T>(x.cols)},
                            call.stream);
  });
}

void launch(const LayerNorm& op, const Launch& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == op.spec.hidden && y.cols == op.spec.hidden && x.rows == y.rows);
  with_type(y.dtype, [&]<class T>() {
    launch_forward<false, T>({.x = nullptr,
                              .residual = data_of<T>(x),
                              .gamma = call.in[1].f32(),
                              .beta = call.in[2].f32(),
                              .y = data_of<T>(y),
                              .sum = nullptr,
                              .stats = call.out[1].f32(),
                              .rows = row_count(y),
                              .cols = int(y.cols),
                              .eps = op.spec.eps,
                              .mask = {},
                              .rows_are = Rows::kTokens,
                              .batch = *call.batch,
                              .state = call.state,
                              .forgets_x = false},
                             call.stream);
  });
}

void launch(const NormAgain&, const Launch& call) {
  const Tensor &sum = call.in[0], &y = call.out[0];
  SNUG_CHECK(sum.rows == y.rows && sum.cols == y.cols && sum.dtype == y.dtype);
  if (y.size() == 0) return;
  with_type(y.dtype, [&]<class T>() {
    with_bool(y.cols % kEight == 0, [&]<bool kWhole>() {
      norm_again_kernel<T, kWhole><<<place_blocks(y), kPlaceBlock, 0, call.stream>>>(
          data_of<T>(sum), call.in[1].f32(), call.in[2].f32(), call.in[3].f32(), data_of<T>(y),
          y.rows, int(y.cols), call.state);
      SNUG_CUDA_LAUNCHED("norm_again");
    });
  });
}

void launch(const NormGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &dx = call.out[1];
  const Tensor dbias = call.out.size() > 4 ? call.out[4] : Tensor();
  const SumTargets targets = {{call.out[2].f32(), call.out[3].f32(), dbias.f32()}};
  SNUG_CHECK(!dbias || (dx && !op.spec.add_x));
  with_type(dy.dtype, [&]<class T>() {
    BackwardArguments<T> arguments = {
        .dy = data_of<T>(dy),
        .dsum = data_of<T>(call.in[1]),
        .sum = data_of<T>(call.in[2]),
        .stats = call.in[3].f32(),
        .gamma = call.in[4].f32(),
        .dresidual = data_of<T>(call.out[0]),
        .dx = data_of<T>(dx),
        .add_residual = op.spec.add_residual,
        .add_x = op.spec.add_x,
        .forgets_dy = call.dies(0) && has_whole_lines<T>(dy.cols),
        .rows = row_count(dy),
        .cols = int(dy.cols),
        .mask = dx ? dropout_mask(op.spec.dropout, op.spec.site, *call.step) : DropoutMask(),
        .rows_are = op.spec.rows,
        .batch = *call.batch,
        .state = call.state};
    with_column_shape(dy.cols, [&]<class Shape>() {
      using Rows = Walk<T, Shape>;
      const int64_t blocks = Rows::blocks(dy.rows);
      const size_t bytes = piece_bytes(blocks, kNormSums, dy.cols);
      arguments.partials =
          targets ? room_for_pieces(call.pending, bytes, call.workspace, call.stream) : nullptr;
      with_bool(arguments.plain(), [&]<bool kPlain>() {
        norm_backward_kernel<T, Shape, kPlain>
            <<<unsigned(blocks), Rows::kBlock, 0, call.stream>>>(arguments);
      });
      SNUG_CUDA_LAUNCHED("norm_backward");
      if (targets) {
        add_pieces(call.pending, {arguments.partials, blocks, kNormSums, dy.cols, targets},
                   call.stream);
      }
    });
  });
}

}  // namespace snug::cuda
