// Kernel of ops/cross_entropy.h: one block, since rows are few and the loss is one sum in a fixed order.
#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "ops/cross_entropy.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 512;

template <class T>
struct Arguments {
  const T* logits;
  T* dlogits;    // or null
  double* loss;  // or null
  int64_t rows;
  int classes;
  const int32_t* labels;
  const StepState* state;
};

template <int kLanes>
__device__ float lanes_max(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}
// kLanes threads share a row. The sum of exponentials is fp64: the loss of a confident row lives in its last digits.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlock) cross_entropy_kernel(const Arguments<T> a) {
  constexpr int kRows = kBlock / kLanes;
  const int lane = int(threadIdx.x) % kLanes, classes = a.classes;
  const int64_t real = a.state->sequences;
  const float scale = a.state->loss_scale;
  double total = 0.0;
  for (int64_t base = 0; base < a.rows; base += kRows) {  // all lanes stay in the loop: they exchange values
    const int64_t row = base + int(threadIdx.x) / kLanes;
    const int label = row < a.rows && row < real ? a.labels[row] : -1;
    const int here = label >= 0 ? classes : 0;
    const T* const logits = a.logits + row * classes;
    float most = -INFINITY;
    for (int c = lane; c < here; c += kLanes) most = fmaxf(most, to_float(logits[c]));
    most = lanes_max<kLanes>(most);
    double sum = 0.0;
    for (int c = lane; c < here; c += kLanes) sum += expf(to_float(logits[c]) - most);  // NaN comes through
    sum = lanes_sum<kLanes>(sum);
    // The difference first: the largest logit may be huge.
    if (lane == 0 && here > 0) total += log(sum) + (double(most) - double(to_float(logits[label])));
    if (a.dlogits && row < a.rows) {
      for (int c = lane; c < classes; c += kLanes) {
        double d = 0.0;
        if (here > 0) d = scale * (expf(to_float(logits[c]) - most) / sum - (c == label ? 1.0 : 0.0));
        a.dlogits[row * classes + c] = from_float<T>(float(d));
      }
    }
  }
  if (!a.loss) return;
  total = block_sum(total);
  if (threadIdx.x == 0) *a.loss += double(scale) * total;
}

}  // namespace

void launch(const CrossEntropy& op, const Launch& call) {
  const Tensor &logits = call.in[0], &loss = call.out[0];
  SNUG_CHECK(logits.cols == op.spec.classes && (!loss || loss.dtype == DType::kF64));
  const Tensor dlogits = call.out.size() > 1 ? call.out[1] : Tensor();
  with_type(logits.dtype, [&]<class T>() {
    const Arguments<T> arguments = {.logits = data_of<T>(logits),
                                    .dlogits = data_of<T>(dlogits),
                                    .loss = data_of<double>(loss),
                                    .rows = logits.rows,
                                    .classes = int(op.spec.classes),
                                    .labels = call.batch->labels,
                                    .state = call.state};
    if (op.spec.classes <= 4) {
      cross_entropy_kernel<T, 1><<<1, kBlock, 0, call.stream>>>(arguments);
    } else {
      cross_entropy_kernel<T, kWarp><<<1, kBlock, 0, call.stream>>>(arguments);
    }
    SNUG_CUDA_LAUNCHED("cross_entropy");
  });
}

}  // namespace snug::cuda
