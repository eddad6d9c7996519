// Kernel of ops/span_loss.h: a block for each sequence, which may have any number of tokens.
#include "cuda/kernels.h"
#include "cuda/row_losses.h"
#include "cuda/rows.cuh"
#include "ops/span_loss.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 256;

template <class T>
struct Arguments {
  const T* logits;
  T* dlogits;      // or null
  double* losses;  // of sequences, or null
  int64_t rows;
  const int32_t *starts, *labels;
  const StepState* state;
};

// In every thread of the block; all must call it.
__device__ float block_max(float value) {
  __shared__ float of_warp[kBlock / kWarp];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (const float other : of_warp) value = fmaxf(value, other);
  return value;
}

// Sequences that are not there are empty; the rows behind all tokens become zero.
template <class T>
__global__ void __launch_bounds__(kBlock) span_loss_kernel(const Arguments<T> a) {
  const int64_t sequence = blockIdx.x;
  const int64_t begin = a.starts[sequence];
  const int tokens = sequence < a.state->sequences ? int(a.starts[sequence + 1] - begin) : 0;
  const double scale = double(a.state->loss_scale) / kSpanEnds;
  double loss = 0.0;
  for (int end = 0; end < kSpanEnds; ++end) {
    // The same in all threads.
    const int label = tokens > 0 ? a.labels[sequence * kSpanEnds + end] : -1;
    const auto logit = [&](int t) { return to_float(a.logits[(begin + t) * kSpanEnds + end]); };
    float most = -INFINITY;
    double sum = 1.0;
    if (label >= 0) {
      for (int t = int(threadIdx.x); t < tokens; t += kBlock) most = fmaxf(most, logit(t));
      most = block_max(most);
      sum = 0.0;
      for (int t = int(threadIdx.x); t < tokens; t += kBlock) {
        sum += expf(logit(t) - most);  // NaN comes through
      }
      sum = block_sum(sum);
      loss += log(sum) + (double(most) -
                          double(logit(label)));  // the difference first: the largest may be huge
    }
    if (!a.dlogits) continue;
    for (int t = int(threadIdx.x); t < tokens; t += kBlock) {
      const double d = label >= 0 ? expf(logit(t) - most) / sum - (t == label ? 1.0 : 0.0) : 0.0;
      a.dlogits[(begin + t) * kSpanEnds + end] = from_float<T>(float(scale * d));
    }
  }
  if (a.losses && threadIdx.x == 0) a.losses[sequence] = loss / kSpanEnds;
  if (!a.dlogits) return;
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t t = a.state->tokens + sequence * kBlock + threadIdx.x; t < a.rows; t += stride) {
    for (int end = 0; end < kSpanEnds; ++end) a.dlogits[t * kSpanEnds + end] = from_float<T>(0.0f);
  }
}

}  // namespace

void launch(const SpanLoss&, const Launch& call) {
  const Tensor &logits = call.in[0], &loss = call.out[0];
  const Tensor dlogits = call.out.size() > 1 ? call.out[1] : Tensor();
  const Batch& batch = *call.batch;
  SNUG_CHECK(logits.cols == kSpanEnds && (!loss || loss.dtype == DType::kF64) &&
             batch.dims.label_words == kSpanEnds);
  double* const losses = row_losses(call, batch.dims.sequences);
  with_type(logits.dtype, [&]<class T>() {
    const Arguments<T> arguments = {.logits = data_of<T>(logits),
                                    .dlogits = data_of<T>(dlogits),
                                    .losses = losses,
                                    .rows = logits.rows,
                                    .starts = batch.starts,
                                    .labels = batch.labels,
                                    .state = call.state};
    span_loss_kernel<T><<<unsigned(batch.dims.sequences), kBlock, 0, call.stream>>>(arguments);
    SNUG_CUDA_LAUNCHED("span_loss");
  });
  if (losses) add_row_losses(losses, batch.dims.sequences, data_of<double>(loss), call);
}

}  // namespace snug::cuda
