// Kernel of ops/convert.h.
#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "ops/convert.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 256, kFour = 4, kUnroll = 4;
constexpr int64_t kBlockElements = int64_t{kBlock} * kFour * kUnroll;

// Four elements at a time, 16 bytes in and 8 out, so that neighbouring threads read and write
// neighbouring memory; four times per thread, all of them read before the first is written.
template <class T>
__global__ void __launch_bounds__(kBlock) convert_kernel(const float* x, T* y, int64_t count) {
  const int64_t begin = int64_t(blockIdx.x) * kBlockElements;
  float4 values[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t at = begin + (i * kBlock + int(threadIdx.x)) * kFour;
    if (at + kFour <= count) values[i] = __ldcs(reinterpret_cast<const float4*>(x + at));
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t at = begin + (i * kBlock + int(threadIdx.x)) * kFour;
    if (at + kFour <= count) {
      *reinterpret_cast<uint2*>(y + at) = packed<T>(values[i]);
    } else {
      for (int64_t j = at; j < count; ++j) y[j] = from_float<T>(x[j]);
    }
  }
}

// The way back, eight bytes in and 16 out.
__global__ void __launch_bounds__(kBlock)
    widen_kernel(const __nv_bfloat16* x, float* y, int64_t count) {
  const int64_t begin = int64_t(blockIdx.x) * kBlockElements;
  uint2 values[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t at = begin + (i * kBlock + int(threadIdx.x)) * kFour;
    if (at + kFour <= count) values[i] = __ldcs(reinterpret_cast<const uint2*>(x + at));
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t at = begin + (i * kBlock + int(threadIdx.x)) * kFour;
    if (at + kFour <= count) {
      *reinterpret_cast<float4*>(y + at) = unpacked<__nv_bfloat16>(values[i]);
    } else {
      for (int64_t j = at; j < count; ++j) y[j] = to_float(x[j]);
    }
  }
}

}  // namespace

void launch(const Convert&, const Launch& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.size() == y.size());
  if (y.size() == 0) return;
  const auto blocks = unsigned(ceil_div(y.size(), kBlockElements));
  if (x.dtype == DType::kBF16) {
    SNUG_CHECK(y.dtype == DType::kF32);
    widen_kernel<<<blocks, kBlock, 0, call.stream>>>(data_of<const __nv_bfloat16>(x), y.f32(),
                                                     y.size());
    SNUG_CUDA_LAUNCHED("widen");
    return;
  }
  SNUG_CHECK(x.dtype == DType::kF32 && dtype_bytes(y.dtype) == 2);
  const auto start = [&]<class T>() {
    convert_kernel<T><<<blocks, kBlock, 0, call.stream>>>(x.f32(), data_of<T>(y), y.size());
    SNUG_CUDA_LAUNCHED("convert");
  };
  y.dtype == DType::kBF16 ? start.template operator()<__nv_bfloat16>()
                          : start.template operator()<__half>();
}

}  // namespace snug::cuda
