// Kernels of ops/target_rows.h: the tokens that predict, gathered, and their gradients put back.
#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "ops/target_rows.h"

namespace snug::cuda {
namespace {

template <class T, bool kWhole>
__global__ void __launch_bounds__(kPlaceBlock)
    target_rows_kernel(const T* x, T* y, int64_t rows, int cols, const int32_t* target_rows,
                       const StepState* state) {
  const auto [row, column] = place(cols);
  if (row >= rows) return;
  Packed<T> values;
  if (row < state->targets) {
    values = load<kWhole>(x + int64_t(target_rows[row]) * cols, column, cols);
  }
  store<kWhole>(y + row * cols, column, cols, values);
}

// Over the rows of dy: others of dx stay as they are.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kPlaceBlock)
    add_target_rows_kernel(const T* dy, T* dx, int64_t rows, int cols, const int32_t* target_rows,
                           const StepState* state) {
  const auto [row, column] = place(cols);
  if (row >= rows || row >= state->targets) return;
  T* const to = dx + int64_t(target_rows[row]) * cols;
  Eight values = load_eight<kWhole>(to, column, cols);
  values += load_eight<kWhole>(dy + row * cols, column, cols);
  store_eight<kWhole>(to, column, cols, values);
}

// Which target a token is, or -1. Where all tokens but the last of each text are targets, the place
// follows from the number of the text; otherwise it is searched for.
__device__ int target_of(const Batch& batch, int token, int targets) {
  const int guess = token - batch.row_of[token];
  if (guess >= 0 && guess < targets && batch.target_rows[guess] == token) return guess;
  int begin = 0, end = targets;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (batch.target_rows[middle] < token) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < targets && batch.target_rows[begin] == token ? begin : -1;
}

// Over the rows of dx, so that each is written once.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kPlaceBlock)
    set_target_rows_kernel(const T* dy, T* dx, int64_t rows, int cols, Batch batch,
                           const StepState* state) {
  const auto [row, column] = place(cols);
  if (row >= rows) return;
  const int target = row < state->tokens ? target_of(batch, int(row), state->targets) : -1;
  Packed<T> values;
  if (target >= 0) values = load<kWhole>(dy + int64_t(target) * cols, column, cols);
  store<kWhole>(dx + row * cols, column, cols, values);
}

}  // namespace

void launch(const TargetRows&, const Launch& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == y.cols && x.dtype == y.dtype);
  if (y.rows == 0) return;
  with_type(y.dtype, [&]<class T>() {
    with_bool(y.cols % kEight == 0, [&]<bool kWhole>() {
      target_rows_kernel<T, kWhole><<<place_blocks(y), kPlaceBlock, 0, call.stream>>>(
          data_of<T>(x), data_of<T>(y), y.rows, int(y.cols), call.batch->target_rows, call.state);
      SNUG_CUDA_LAUNCHED("target_rows");
    });
  });
}

void launch(const TargetRowsGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &dx = call.out[0];
  SNUG_CHECK(dy.cols == dx.cols && dy.dtype == dx.dtype);
  const Tensor& over = op.accumulate ? dy : dx;
  if (over.rows == 0) return;
  with_type(dx.dtype, [&]<class T>() {
    with_bool(dx.cols % kEight == 0, [&]<bool kWhole>() {
      if (op.accumulate) {
        add_target_rows_kernel<T, kWhole><<<place_blocks(over), kPlaceBlock, 0, call.stream>>>(
            data_of<T>(dy), data_of<T>(dx), dy.rows, int(dx.cols), call.batch->target_rows,
            call.state);
      } else {
        set_target_rows_kernel<T, kWhole><<<place_blocks(over), kPlaceBlock, 0, call.stream>>>(
            data_of<T>(dy), data_of<T>(dx), dx.rows, int(dx.cols), *call.batch, call.state);
      }
      SNUG_CUDA_LAUNCHED("target_rows_gradient");
    });
  });
}

}  // namespace snug::cuda
