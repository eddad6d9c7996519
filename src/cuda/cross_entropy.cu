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
  const T* teacher;  // or null
  Distillation distillation;
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

// What a row with a teacher needs besides, by the formulas of ops/distillation.h: softmaxes over the temperature.
template <class T>
struct Distilled {
  const T *logits, *teacher;
  float most, teacher_most, inverse;  // the largest logits, one over the temperature
  double soft = 1.0, taught = 1.0;    // sums of exponentials

  __device__ float soft_exponent(int c) const { return (to_float(logits[c]) - most) * inverse; }
  __device__ float taught_exponent(int c) const { return (to_float(teacher[c]) - teacher_most) * inverse; }
  __device__ double p_soft(int c) const { return expf(soft_exponent(c)) / soft; }
  __device__ double p_taught(int c) const { return expf(taught_exponent(c)) / taught; }
};

// kLanes threads share the row, or what is `here` of it; all of them get the sums.
template <class T, int kLanes>
__device__ Distilled<T> distilled(const Arguments<T>& a, int64_t row, int here, float most) {
  const int lane = int(threadIdx.x) % kLanes;
  Distilled<T> d = {a.logits + row * a.classes, a.teacher + row * a.classes, most, -INFINITY, 1.0f / a.distillation.temperature};
  for (int c = lane; c < here; c += kLanes) d.teacher_most = fmaxf(d.teacher_most, to_float(d.teacher[c]));
  d.teacher_most = lanes_max<kLanes>(d.teacher_most);
  double soft = 0.0, taught = 0.0;
  for (int c = lane; c < here; c += kLanes) soft += expf(d.soft_exponent(c)), taught += expf(d.taught_exponent(c));
  d.soft = lanes_sum<kLanes>(soft);
  d.taught = lanes_sum<kLanes>(taught);
  return d;
}

// kLanes threads share a row. The sum of exponentials is fp64: the loss of a confident row lives in its last digits.
template <class T, int kLanes, bool kDistils>
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
    const double alpha = kDistils ? a.distillation.alpha : 0.0, temperature = a.distillation.temperature;
    // The difference first: the largest logit may be huge.
    if (lane == 0 && here > 0) total += (1.0 - alpha) * (log(sum) + (double(most) - double(to_float(logits[label]))));
    Distilled<T> teacher = {};
    if constexpr (kDistils) {
      teacher = distilled<T, kLanes>(a, row, here, most);
      const double log_ratio = log(teacher.soft) - log(teacher.taught);
      double divergence = 0.0;
      for (int c = lane; c < here; c += kLanes) {
        divergence += teacher.p_taught(c) * (teacher.taught_exponent(c) - teacher.soft_exponent(c) + log_ratio);
      }
      total += alpha * temperature * temperature * divergence;
    }
    if (a.dlogits && row < a.rows) {
      for (int c = lane; c < classes; c += kLanes) {
        double d = 0.0;
        if (here > 0) d = (1.0 - alpha) * (expf(to_float(logits[c]) - most) / sum - (c == label ? 1.0 : 0.0));
        if (kDistils && here > 0) d += alpha * temperature * (teacher.p_soft(c) - teacher.p_taught(c));
        a.dlogits[row * classes + c] = from_float<T>(float(scale * d));
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
  const Tensor dlogits = call.out.size() > 1 ? call.out[1] : Tensor(), teacher = call.in.size() > 1 ? call.in[1] : Tensor();
  SNUG_CHECK(!teacher || (teacher.cols == logits.cols && teacher.dtype == logits.dtype));
  with_type(logits.dtype, [&]<class T>() {
    const Arguments<T> arguments = {.logits = data_of<T>(logits),
                                    .teacher = data_of<T>(teacher),
                                    .distillation = op.spec.distillation,
                                    .dlogits = data_of<T>(dlogits),
                                    .loss = data_of<double>(loss),
                                    .rows = logits.rows,
                                    .classes = int(op.spec.classes),
                                    .labels = call.batch->labels,
                                    .state = call.state};
    with_bool(bool(teacher), [&]<bool kDistils>() {
      const auto kernel = op.spec.classes <= 4 ? cross_entropy_kernel<T, 1, kDistils> : cross_entropy_kernel<T, kWarp, kDistils>;
      kernel<<<1, kBlock, 0, call.stream>>>(arguments);
    });
    SNUG_CUDA_LAUNCHED("cross_entropy");
  });
}

}  // namespace snug::cuda
