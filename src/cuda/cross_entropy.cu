// Kernel of ops/cross_entropy.h.
#include "cuda/kernels.h"
#include "cuda/row_losses.h"
#include "cuda/rows.cuh"
#include "ops/cross_entropy.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 256;

template <class T>
struct Arguments {
  const T* logits;
  const T* teacher;  // or null
  CrossEntropySpec spec;
  T* dlogits;      // or null
  double* losses;  // of rows, or null
  int64_t rows;
  Batch batch;
  const StepState* state;

  __device__ bool of_targets() const { return spec.rows == Rows::kTargets; }
  __device__ int label(int64_t row) const {
    return of_targets() ? batch.target_ids[row] : batch.labels[row * spec.label_words()];
  }
  __device__ double weight(int64_t row, int label) const {  // of a row that has a label
    if (!spec.weighted) return 1.0;
    const int64_t sequence = of_targets() ? batch.row_of[batch.target_rows[row]] : row;
    return double(__int_as_float(
        batch.labels[sequence * spec.label_words() + 1 + (of_targets() ? label : 0)]));
  }
};

template <int kLanes>
__device__ float lanes_max(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// What a row with a teacher needs besides, by the formulas of ops/distillation.h: softmaxes over
// the temperature.
template <class T>
struct Distilled {
  const T *logits, *teacher;
  float most, teacher_most, inverse;  // the largest logits, one over the temperature
  double soft = 1.0, taught = 1.0;    // sums of exponentials

  __device__ float soft_exponent(int c) const { return (to_float(logits[c]) - most) * inverse; }
  __device__ float taught_exponent(int c) const {
    return (to_float(teacher[c]) - teacher_most) * inverse;
  }
  __device__ double p_soft(int c) const { return expf(soft_exponent(c)) / soft; }
  __device__ double p_taught(int c) const { return expf(taught_exponent(c)) / taught; }
};

// kLanes threads share the row, or what is `here` of it; all of them get the sums.
template <class T, int kLanes>
__device__ Distilled<T> distilled(const Arguments<T>& a, int64_t row, int here, float most) {
  const int lane = int(threadIdx.x) % kLanes;
  const int64_t first = row * a.spec.classes;
  Distilled<T> d = {a.logits + first, a.teacher + first, most, -INFINITY,
                    1.0f / a.spec.distillation.temperature};
  for (int c = lane; c < here; c += kLanes) {
    d.teacher_most = fmaxf(d.teacher_most, to_float(d.teacher[c]));
  }
  d.teacher_most = lanes_max<kLanes>(d.teacher_most);
  double soft = 0.0, taught = 0.0;
  for (int c = lane; c < here; c += kLanes) {
    soft += expf(d.soft_exponent(c)), taught += expf(d.taught_exponent(c));
  }
  d.soft = lanes_sum<kLanes>(soft);
  d.taught = lanes_sum<kLanes>(taught);
  return d;
}

// kLanes threads share a row; all of them stay to the end, since they exchange values. The sum of
// exponentials is fp64: the loss of a confident row lives in its last digits.
template <class T, int kLanes, bool kDistils>
__global__ void __launch_bounds__(kBlock) cross_entropy_kernel(const Arguments<T> a) {
  const int lane = int(threadIdx.x) % kLanes, classes = int(a.spec.classes);
  const int64_t row = int64_t(blockIdx.x) * (kBlock / kLanes) + int(threadIdx.x) / kLanes;
  const int64_t real = a.of_targets() ? a.state->targets : a.state->sequences;
  const int label = row < a.rows && row < real ? a.label(row) : -1;
  const int here = label >= 0 ? classes : 0;
  const T* const logits = a.logits + row * classes;
  float most = -INFINITY;
  for (int c = lane; c < here; c += kLanes) most = fmaxf(most, to_float(logits[c]));
  most = lanes_max<kLanes>(most);
  double sum = 0.0;
  for (int c = lane; c < here; c += kLanes) {
    sum += expf(to_float(logits[c]) - most);  // NaN comes through
  }
  sum = lanes_sum<kLanes>(sum);

  const double weight = here > 0 ? a.weight(row, label) : 1.0;
  const double alpha = kDistils ? a.spec.distillation.alpha : 0.0,
               temperature = a.spec.distillation.temperature;
  const double smoothing = a.spec.smoothing, spread = smoothing / classes;
  const double log_sum = log(sum);
  double loss = 0.0;  // this thread's share
  // The difference first: the largest logit may be huge.
  const auto surprise = [&](int c) {
    return log_sum + (double(most) - double(to_float(logits[c])));
  };
  if (lane == 0 && here > 0) loss = (1.0 - alpha) * (1.0 - smoothing) * surprise(label);
  if (smoothing > 0.0) {
    for (int c = lane; c < here; c += kLanes) loss += (1.0 - alpha) * spread * surprise(c);
  }
  Distilled<T> teacher = {};
  if constexpr (kDistils) {
    teacher = distilled<T, kLanes>(a, row, here, most);
    const double log_ratio = log(teacher.soft) - log(teacher.taught);
    double divergence = 0.0;
    for (int c = lane; c < here; c += kLanes) {
      divergence +=
          teacher.p_taught(c) * (teacher.taught_exponent(c) - teacher.soft_exponent(c) + log_ratio);
    }
    loss += alpha * temperature * temperature * divergence;
  }
  loss = lanes_sum<kLanes>(loss);
  if (row >= a.rows) return;
  if (a.losses && lane == 0) a.losses[row] = here > 0 ? weight * loss : 0.0;
  if (!a.dlogits) return;
  const double scale = weight * double(a.state->loss_scale);
  for (int c = lane; c < classes; c += kLanes) {
    double d = 0.0;
    if (here > 0) {
      d = (1.0 - alpha) *
          (expf(to_float(logits[c]) - most) / sum - (c == label ? 1.0 - smoothing : 0.0) - spread);
    }
    if (kDistils && here > 0) d += alpha * temperature * (teacher.p_soft(c) - teacher.p_taught(c));
    a.dlogits[row * classes + c] = from_float<T>(float(scale * d));
  }
}

}  // namespace

void launch(const CrossEntropy& op, const Launch& call) {
  const Tensor &logits = call.in[0], &loss = call.out[0];
  SNUG_CHECK(logits.cols == op.spec.classes && (!loss || loss.dtype == DType::kF64));
  const Tensor dlogits = call.out.size() > 1 ? call.out[1] : Tensor(),
               teacher = call.in.size() > 1 ? call.in[1] : Tensor();
  SNUG_CHECK(!teacher || (teacher.cols == logits.cols && teacher.dtype == logits.dtype));
  SNUG_CHECK((op.spec.rows == Rows::kTargets && !op.spec.weighted) ||
             call.batch->dims.label_words == op.spec.label_words());
  if (logits.rows == 0) return;
  double* const losses = row_losses(call, logits.rows);
  with_type(logits.dtype, [&]<class T>() {
    const Arguments<T> arguments = {.logits = data_of<T>(logits),
                                    .teacher = data_of<T>(teacher),
                                    .spec = op.spec,
                                    .dlogits = data_of<T>(dlogits),
                                    .losses = losses,
                                    .rows = logits.rows,
                                    .batch = *call.batch,
                                    .state = call.state};
    const int lanes = op.spec.classes <= 4 ? 1 : kWarp;
    const auto blocks = unsigned(ceil_div(logits.rows, kBlock / lanes));
    with_bool(bool(teacher), [&]<bool kDistils>() {
      const auto kernel = lanes == 1 ? cross_entropy_kernel<T, 1, kDistils>
                                     : cross_entropy_kernel<T, kWarp, kDistils>;
      kernel<<<blocks, kBlock, 0, call.stream>>>(arguments);
    });
    SNUG_CUDA_LAUNCHED("cross_entropy");
  });
  if (losses) add_row_losses(losses, logits.rows, data_of<double>(loss), call);
}

}  // namespace snug::cuda
