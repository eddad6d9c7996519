// Kernels of ops/binary_cross_entropy.h and ops/squared_error.h: a warp for each sequence.
#include "cuda/kernels.h"
#include "cuda/row_losses.h"
#include "cuda/rows.cuh"
#include "ops/binary_cross_entropy.h"
#include "ops/squared_error.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 256, kRows = kBlock / kWarp;

template <class T>
struct Arguments {
  const T* x;
  T* dx;           // or null
  double* losses;  // of rows, or null
  int64_t rows;
  int cols;
  const int32_t* labels;
  int words;  // of a label
  const StepState* state;
};

// What an output adds to the loss, and its gradient.
struct Share {
  double loss = 0.0;
  float gradient = 0.0f;
};

struct BinaryShare {
  static __device__ Share of(float x, const int32_t* words, int c) {
    const float wanted = has_class(words, c) ? 1.0f : 0.0f;
    const float small = expf(-fabsf(x));  // at most one: nothing overflows
    return {double(fmaxf(x, 0.0f)) - double(x) * double(wanted) + log1p(double(small)),
            (x < 0.0f ? small : 1.0f) / (1.0f + small) - wanted};
  }
};

struct SquaredShare {
  static __device__ Share of(float x, const int32_t* words, int c) {
    const float label = __int_as_float(words[c]);
    if (isnan(label)) return {};
    const double error = double(x) - double(label);
    return {error * error, float(2.0 * error)};
  }
};

template <class T, class ShareOf>
__global__ void __launch_bounds__(kBlock) label_loss_kernel(const Arguments<T> a) {
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t row = int64_t(blockIdx.x) * kRows + int(threadIdx.x) / kWarp;
  if (row >= a.rows) return;  // whole warps
  const bool real = row < a.state->sequences;
  const float scale = a.state->loss_scale / float(a.cols);
  double loss = 0.0;
  for (int c = lane; c < a.cols; c += kWarp) {
    Share share;
    if (real) share = ShareOf::of(to_float(a.x[row * a.cols + c]), a.labels + row * a.words, c);
    loss += share.loss;
    if (a.dx) a.dx[row * a.cols + c] = from_float<T>(scale * share.gradient);
  }
  loss = lanes_sum(loss);
  if (a.losses && lane == 0) a.losses[row] = loss / a.cols;
}

template <class ShareOf>
void launch_label_loss(const Launch& call, int64_t cols, int64_t words, const char* name) {
  const Tensor &x = call.in[0], &loss = call.out[0];
  const Tensor dx = call.out.size() > 1 ? call.out[1] : Tensor();
  SNUG_CHECK(x.cols == cols && (!loss || loss.dtype == DType::kF64) &&
             call.batch->dims.label_words == words);
  double* const losses = row_losses(call, x.rows);
  with_type(x.dtype, [&]<class T>() {
    const Arguments<T> arguments = {.x = data_of<T>(x),
                                    .dx = data_of<T>(dx),
                                    .losses = losses,
                                    .rows = x.rows,
                                    .cols = int(cols),
                                    .labels = call.batch->labels,
                                    .words = int(words),
                                    .state = call.state};
    label_loss_kernel<T, ShareOf>
        <<<unsigned(ceil_div(x.rows, kRows)), kBlock, 0, call.stream>>>(arguments);
    check(cudaPeekAtLastError(), name);
  });
  if (losses) add_row_losses(losses, x.rows, data_of<double>(loss), call);
}

}  // namespace

void launch(const BinaryCrossEntropy& op, const Launch& call) {
  launch_label_loss<BinaryShare>(call, op.spec.classes, op.spec.label_words(),
                                 "kernel binary_cross_entropy");
}

void launch(const SquaredError& op, const Launch& call) {
  launch_label_loss<SquaredShare>(call, op.spec.numbers, op.spec.label_words(),
                                  "kernel squared_error");
}

}  // namespace snug::cuda
