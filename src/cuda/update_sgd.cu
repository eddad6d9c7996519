// Kernel of optim/sgd.h.
#include "cuda/update.cuh"

namespace snug::cuda {
namespace {

// b is the momentum, or unused.
template <bool kMomentum>
__device__ inline void sgd_element(float& w, float& b, float gradient, const UpdateFactors& f,
                                   const UpdateScales& s) {
  const float g = fmaf(gradient, s.gradient, __fmul_rn(w, s.decay));
  b = kMomentum ? fmaf(b, f.momentum, g) : g;
  w = fmaf(-f.learning_rate, b, w);
}

template <class C, bool kSplit, GradientForm kForm, bool kMomentum>
__device__ inline void sgd_chunk(const UpdateCall& call, const UpdateChunk& chunk) {
  const Weights<C, kSplit> w(call.at<std::byte>(chunk.weight), call.at<C>(chunk.copy));
  const Gradients<kForm> g(call.at<std::byte>(chunk.gradient));
  float* const b = call.at<float>(chunk.first);
  const bool applied = call.result->applied, clears = !chunk.keeps_gradient;
  const UpdateFactors factors = *call.factors;
  const UpdateScales scales(factors, *call.result, chunk.decays);
  over_chunk(
      chunk.count,
      [&](int i) {
        if (applied) {
          const float4 g4 = g.four(i);
          float4 w4 = w.four(i), b4 = {};
          if constexpr (kMomentum) b4 = four_at(b, i);
          sgd_element<kMomentum>(w4.x, b4.x, g4.x, factors, scales);
          sgd_element<kMomentum>(w4.y, b4.y, g4.y, factors, scales);
          sgd_element<kMomentum>(w4.z, b4.z, g4.z, factors, scales);
          sgd_element<kMomentum>(w4.w, b4.w, g4.w, factors, scales);
          w.set_four(i, w4);
          if constexpr (kMomentum) four_at(b, i) = b4;
        }
        if (clears) g.clear_four(i);
      },
      [&](int i) {
        if (applied) {
          float w1 = w.one(i), b1 = 0.0f;
          if constexpr (kMomentum) b1 = b[i];
          sgd_element<kMomentum>(w1, b1, g.one(i), factors, scales);
          w.set_one(i, w1);
          if constexpr (kMomentum) b[i] = b1;
        }
        if (clears) g.clear_one(i);
      });
}

template <class C, bool kMomentum>
__global__ void __launch_bounds__(kUpdateBlock) sgd_kernel(const UpdateCall call) {
  const UpdateChunk chunk = call.chunks[blockIdx.x];
  with_halves<C>(chunk, [&]<bool kSplit, GradientForm kForm>() {
    sgd_chunk<C, kSplit, kForm, kMomentum>(call, chunk);
  });
}

}  // namespace

void launch_sgd(const UpdateArguments& arguments, cudaStream_t stream) {
  with_type(arguments.copy_dtype, [&]<class C>() {
    with_bool(arguments.optimizer == Optimizer::kSgdMomentum, [&]<bool kMomentum>() {
      sgd_kernel<C, kMomentum>
          <<<unsigned(arguments.chunk_count), kUpdateBlock, 0, stream>>>(UpdateCall(arguments));
      SNUG_CUDA_LAUNCHED("sgd");
    });
  });
}

}  // namespace snug::cuda
