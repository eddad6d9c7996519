// Kernels of the operators with one row per sequence: EndToken and its gradient, MeanPool, and
// Dropout.
#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "ops/dropout.h"
#include "ops/end_token.h"
#include "ops/mean_pool.h"

namespace snug::cuda {
namespace {

template <class T, bool kWhole>
__global__ void end_token_kernel(const T* x, T* y, int64_t rows, int cols, End end,
                                 const int32_t* starts, const StepState* state) {
  const auto [row, column] = place(cols);
  if (row >= rows) return;
  Packed<T> values;
  if (row < state->sequences) {
    values = load<kWhole>(x + end_of(starts, row, end) * cols, column, cols);
  }
  store<kWhole>(y + row * cols, column, cols, values);
}

// Over the rows of dx, so that each is written once.
template <class T, bool kWhole>
__global__ void end_token_gradient_kernel(const T* dy, T* dx, int64_t rows, int cols, End end,
                                          bool add, Batch batch, const StepState* state) {
  const auto [row, column] = place(cols);
  if (row >= rows) return;
  const bool chosen = row < state->tokens && end_of(batch.starts, batch.row_of[row], end) == row;
  if (add && !chosen) return;
  Eight values;
  if (chosen) values = load_eight<kWhole>(dy + int64_t(batch.row_of[row]) * cols, column, cols);
  if (add) values += load_eight<kWhole>(dx + row * cols, column, cols);
  store_eight<kWhole>(dx + row * cols, column, cols, values);
}

// One block per sequence.
template <class T>
__global__ void mean_pool_kernel(const T* x, T* y, int cols, const int32_t* starts,
                                 const StepState* state) {
  const int64_t row = blockIdx.x;
  const bool real = row < state->sequences;
  const int begin = real ? starts[row] : 0, end = real ? starts[row + 1] : 0;
  const float factor = end > begin ? 1.0f / float(end - begin) : 0.0f;
  for (int column = int(threadIdx.x); column < cols; column += int(blockDim.x)) {
    float sum = 0.0f;
#pragma unroll 8
    for (int t = begin; t < end; ++t) sum += to_float(x[int64_t(t) * cols + column]);
    y[row * cols + column] = from_float<T>(sum * factor);
  }
}

template <class T, bool kWhole>
__global__ void dropout_kernel(const T* x, T* y, int64_t rows, int cols, bool add, Rows what,
                               DropoutMask mask, const Batch batch, const StepState* state) {
  const auto [row, column] = place(cols);
  if (row >= rows) return;
  Eight values;
  if (row < real_rows(*state, what)) {
    values = load_eight<kWhole>(x + row * cols, column, cols);
    if (mask.on()) {
      values *= mask_factors(mask, token_row(batch, row_place(batch, what, row)), column);
    }
    if (add) values += load_eight<kWhole>(y + row * cols, column, cols);
  } else if (add) {
    return;
  }
  store_eight<kWhole>(y + row * cols, column, cols, values);
}

}  // namespace

void launch(const EndToken& op, const Launch& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == y.cols);
  with_type(y.dtype, [&]<class T>() {
    with_bool(y.cols % kEight == 0, [&]<bool kWhole>() {
      end_token_kernel<T, kWhole><<<place_blocks(y), kPlaceBlock, 0, call.stream>>>(
          data_of<T>(x), data_of<T>(y), y.rows, int(y.cols), op.end, call.batch->starts,
          call.state);
      SNUG_CUDA_LAUNCHED("end_token");
    });
  });
}

void launch(const EndTokenGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &dx = call.out[0];
  SNUG_CHECK(dy.cols == dx.cols);
  with_type(dx.dtype, [&]<class T>() {
    with_bool(dx.cols % kEight == 0, [&]<bool kWhole>() {
      end_token_gradient_kernel<T, kWhole><<<place_blocks(dx), kPlaceBlock, 0, call.stream>>>(
          data_of<T>(dy), data_of<T>(dx), dx.rows, int(dx.cols), op.end, op.accumulate, *call.batch,
          call.state);
      SNUG_CUDA_LAUNCHED("end_token_gradient");
    });
  });
}

void launch(const MeanPool&, const Launch& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == y.cols);
  with_type(y.dtype, [&]<class T>() {
    mean_pool_kernel<T><<<unsigned(y.rows), 256, 0, call.stream>>>(
        data_of<T>(x), data_of<T>(y), int(y.cols), call.batch->starts, call.state);
    SNUG_CUDA_LAUNCHED("mean_pool");
  });
}

void launch(const Dropout& op, const Launch& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.rows == y.rows && x.cols == y.cols);
  if (y.rows == 0) return;
  const DropoutMask mask = dropout_mask(op.spec.p, op.spec.site, *call.step);
  with_type(y.dtype, [&]<class T>() {
    with_bool(y.cols % kEight == 0, [&]<bool kWhole>() {
      dropout_kernel<T, kWhole><<<place_blocks(y), kPlaceBlock, 0, call.stream>>>(
          data_of<T>(x), data_of<T>(y), y.rows, int(y.cols), op.add, op.spec.rows, mask,
          *call.batch, call.state);
      SNUG_CUDA_LAUNCHED("dropout");
    });
  });
}

}  // namespace snug::cuda
