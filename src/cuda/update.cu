// Norm of the gradient and the decision of update.h; the updates themselves are beside this file,
// one per optimizer.
#include "core/error.h"
#include "cuda/update.cuh"

namespace snug::cuda {
namespace {

__device__ inline bool is_zero(const float4& f) {  // not minus zero
  return (__float_as_uint(f.x) | __float_as_uint(f.y) | __float_as_uint(f.z) |
          __float_as_uint(f.w)) == 0;
}

// The thread's share of a chunk's sum of squares, and in `found` a bit for each of its vectors that
// has a gradient in the warp.
template <GradientForm kForm>
__device__ inline float squares_of_chunk(const Gradients<kForm>& g, int count, uint32_t& found) {
  float4 fours[kChunkFours];
#pragma unroll
  for (int v = 0; v < kChunkFours; ++v) {
    const int i = (v * kUpdateBlock + int(threadIdx.x)) * kFour;
    fours[v] = i + kFour <= count ? g.four(i) : float4{};
  }
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kChunkFours; ++v) {
    const float4 f = fours[v];
    sum += fmaf(f.x, f.x, f.y * f.y) + fmaf(f.z, f.z, f.w * f.w);
  }
#pragma unroll
  for (int v = 0; v < kChunkFours; ++v) {
    found |= uint32_t(__any_sync(0xffffffffu, !is_zero(fours[v]))) << v;
  }
  const int rest = count % kFour;  // behind the last whole vector
  if (int(threadIdx.x) < rest) {
    const float last = g.one(count - rest + int(threadIdx.x));
    sum = fmaf(last, last, sum);
  }
  return sum;
}

// fp32 within a chunk, where a thread adds few squares, fp64 across.
__global__ void __launch_bounds__(kUpdateBlock)
    squares_kernel(std::byte* arena, const UpdateChunk* chunks, int64_t chunk_count,
                   double* partials, uint8_t* seen) {
  double total = 0.0;
  for (int64_t c = blockIdx.x; c < chunk_count; c += gridDim.x) {
    std::byte* const gradient = arena + chunks[c].gradient;
    const int count = chunks[c].count;
    uint32_t found = 0;
    float sum = 0.0f;
    with_gradient_form(chunks[c].gradient_form, [&]<GradientForm kForm>() {
      sum = squares_of_chunk(Gradients<kForm>(gradient), count, found);
    });
    if (seen && threadIdx.x % kWarp == 0) {
      uint8_t& byte = seen[c * kSeenBytes + threadIdx.x / kWarp];
      byte = SeenGradients(byte).after(found).bits;
    }
    total += double(sum);
  }
  total = block_sum(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kNormPartials)
    decide_kernel(const double* partials, int count, const UpdateFactors* factors, double* loss,
                  UpdateResult* result) {
  const double squares = block_sum(int(threadIdx.x) < count ? partials[threadIdx.x] : 0.0);
  if (threadIdx.x > 0) return;
  const double norm = sqrt(squares) * double(factors->gradient_scale),
               max_norm = double(factors->max_norm);
  const double clip = max_norm > 0.0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
  *result = {.loss = *loss,
             .gradient_norm = norm,
             .applied = isfinite(*loss) && isfinite(norm),
             .clip = float(clip)};
  *loss = 0.0;
}

}  // namespace

void launch_update(const UpdateArguments& arguments, cudaStream_t stream) {
  const int partials = int(std::min<int64_t>(kNormPartials, arguments.chunk_count));
  if (partials > 0) {
    squares_kernel<<<unsigned(partials), kUpdateBlock, 0, stream>>>(
        arguments.arena, arguments.chunks, arguments.chunk_count, arguments.partials,
        arguments.seen);
    SNUG_CUDA_LAUNCHED("squares");
  }
  decide_kernel<<<1, kNormPartials, 0, stream>>>(arguments.partials, partials, arguments.factors,
                                                 arguments.loss, arguments.result);
  SNUG_CUDA_LAUNCHED("decide");
  if (partials == 0) return;
  switch (arguments.optimizer) {
    case Optimizer::kAdamW:
      return launch_adamw(arguments, stream);
    case Optimizer::kAdamW8Bit:
      return launch_adamw_8bit(arguments, stream);
    case Optimizer::kAdamWBf16:
      return launch_adamw_bf16(arguments, stream);
    case Optimizer::kAdafactor:
      return launch_adafactor(arguments, stream);
    case Optimizer::kSgd:
    case Optimizer::kSgdMomentum:
      return launch_sgd(arguments, stream);
  }
}

}  // namespace snug::cuda
