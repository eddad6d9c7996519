// Kernel of optim/adamw_bf16.h: eight elements a thread, so that one Philox call rounds all of them
// in one array.
#include "cuda/update.cuh"
#include "optim/rounding.h"

namespace snug::cuda {
namespace {

__device__ inline Packed<__nv_bfloat16> rounded(const Eight& values, const RoundingDraws& draws,
                                                RoundedArray array, uint32_t block) {
  const auto words = philox<kRoundingRounds>(rounding_counter(draws, array, block), draws.key);
  Packed<__nv_bfloat16> packed;
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    const uint32_t draw = words[i / 2] >> (i % 2 * 16) & 0xffff;
    packed.words[i / 2] |= uint32_t(round_to_bfloat16(__float_as_uint(values.at[i]), draw))
                           << (i % 2 * 16);
  }
  return packed;
}

__device__ inline void store_rounded(__nv_bfloat16* array, int i, int count,
                                     const Packed<__nv_bfloat16>& packed) {
  if (i + kEight <= count) {
    store<true>(array, i, count, packed);
  } else {
    store<false>(array, i, count, packed);
  }
}

template <GradientForm kForm>
__device__ inline void bf16_chunk(const UpdateCall& call, const UpdateChunk& chunk) {
  auto* const w = call.at<__nv_bfloat16>(chunk.copy);
  auto *const m = call.at<__nv_bfloat16>(chunk.first), *const v =
                                                           call.at<__nv_bfloat16>(chunk.second);
  const Gradients<kForm> g(call.at<std::byte>(chunk.gradient));
  const bool applied = call.result->applied;
  const UpdateFactors factors = *call.factors;
  const UpdateScales scales(factors, *call.result, chunk.decays);
  const RoundingDraws draws = {
      {factors.key[0], factors.key[1]}, uint32_t(chunk.parameter), factors.step};
  for (int i = int(threadIdx.x) * kEight; i < chunk.count; i += kUpdateBlock * kEight) {
    if (applied) {
      const Eight g8 = eight_of(g, i, chunk.count);
      Eight w8 = eight_of(w, i, chunk.count), m8 = eight_of(m, i, chunk.count),
            v8 = eight_of(v, i, chunk.count);
#pragma unroll
      for (int e = 0; e < kEight; ++e) {
        adamw_element(w8.at[e], m8.at[e], v8.at[e], g8.at[e], factors, scales);
      }
      const auto block = uint32_t((chunk.begin + i) / kEight);
      store_rounded(w, i, chunk.count, rounded(w8, draws, RoundedArray::kWeights, block));
      store_rounded(m, i, chunk.count, rounded(m8, draws, RoundedArray::kFirstMoments, block));
      store_rounded(v, i, chunk.count, rounded(v8, draws, RoundedArray::kSecondMoments, block));
    }
    if (!chunk.keeps_gradient) store_eight_of(g.at, i, chunk.count, Eight());
  }
}

// C: type of the copies of what stays fp32.
template <class C>
__global__ void __launch_bounds__(kUpdateBlock) adamw_bf16_kernel(const UpdateCall call) {
  const UpdateChunk chunk = call.chunks[blockIdx.x];
  if (chunk.format == StateFormat::kHalfMoments) {
    with_gradient_form(chunk.gradient_form,
                       [&]<GradientForm kForm>() { bf16_chunk<kForm>(call, chunk); });
  } else {
    adamw_chunk<C>(call, chunk);
  }
}

}  // namespace

void launch_adamw_bf16(const UpdateArguments& arguments, cudaStream_t stream) {
  with_type(arguments.copy_dtype, [&]<class C>() {
    adamw_bf16_kernel<C>
        <<<unsigned(arguments.chunk_count), kUpdateBlock, 0, stream>>>(UpdateCall(arguments));
    SNUG_CUDA_LAUNCHED("adamw_bf16");
  });
}

}  // namespace snug::cuda
