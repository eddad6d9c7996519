// Kernels of ops/gradient_traffic.h. They read and write the host's pinned memory themselves, since
// what a fetch does depends on the micro-batch's number in its step, which a captured copy cannot
// know. A few blocks with many bytes in flight saturate the bus.
#include "cuda/kernels.h"
#include "cuda/pending_sums.h"
#include "cuda/rows.cuh"
#include "ops/gradient_traffic.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 512, kBlocks = 64, kUnroll = 4;

// Whole vectors of 16 bytes; both sides are filled up to 256.
template <class Load>
__device__ inline void stream_vectors(float4* to, int64_t count, const Load& load) {
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t begin = int64_t(blockIdx.x) * kBlock + threadIdx.x; begin < count;
       begin += stride * kUnroll) {
    float4 values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u * stride < count) values[u] = load(begin + u * stride);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u * stride < count) to[begin + u * stride] = values[u];
    }
  }
}

__global__ void __launch_bounds__(kBlock)
    fetch_kernel(const float4* host, float4* to, int64_t count, const StepState* state,
                 bool stored_before) {
  if (state->earlier_passes == 0 && !stored_before) {
    stream_vectors(to, count, [](int64_t) { return float4{}; });
  } else {
    stream_vectors(to, count, [=](int64_t i) { return __ldcv(host + i); });
  }
}

__global__ void __launch_bounds__(kBlock)
    store_kernel(const float4* from, float4* host, int64_t count) {
  stream_vectors(host, count, [=](int64_t i) { return __ldcs(from + i); });
}

float4* outside_gradient(const Launch& call, int slot) {
  return reinterpret_cast<float4*>(call.outside +
                                   call.layout->parameters[size_t(slot)].outside_gradient);
}

int64_t vectors(const Tensor& gradient) {
  return ceil_div(gradient.size() * int64_t(dtype_bytes(gradient.dtype)), sizeof(float4));
}

unsigned blocks(int64_t vectors) {
  return unsigned(std::clamp<int64_t>(ceil_div(vectors, kBlock), 1, kBlocks));
}

}  // namespace

void launch(const FetchGradient& op, const Launch& call) {
  const Tensor& gradient = call.out[0];
  const int64_t count = vectors(gradient);
  fetch_kernel<<<blocks(count), kBlock, 0, call.stream>>>(outside_gradient(call, op.slot),
                                                          static_cast<float4*>(gradient.data),
                                                          count, call.state, op.stored_before);
  SNUG_CUDA_LAUNCHED("fetch_gradient");
}

void launch(const StoreGradient& op, const Launch& call) {
  if (call.pending) call.pending->finish(call.stream);
  const Tensor& gradient = call.in[0];
  const int64_t count = vectors(gradient);
  store_kernel<<<blocks(count), kBlock, 0, call.stream>>>(static_cast<const float4*>(gradient.data),
                                                          outside_gradient(call, op.slot), count);
  SNUG_CUDA_LAUNCHED("store_gradient");
}

}  // namespace snug::cuda
