// What the updates of all optimizers share. Each walks the table of chunks, one block a chunk;
// whether the update applies, and the factor of clipping, are in the result that the norm left.
#pragma once

#include "cuda/check.h"
#include "cuda/rows.cuh"
#include "cuda/update.h"

namespace snug::cuda {

inline constexpr int kUpdateBlock = 256, kFour = 4;
// Vectors of four elements, per thread.
inline constexpr int kChunkFours = kUpdateChunk / (kUpdateBlock * kFour);
static_assert(kChunkFours * kUpdateBlock * kFour == kUpdateChunk);

// After the norm is known; arguments.chunk_count is above zero.
void launch_adamw(const UpdateArguments& arguments, cudaStream_t stream);
void launch_adamw_8bit(const UpdateArguments& arguments, cudaStream_t stream);
void launch_adamw_bf16(const UpdateArguments& arguments, cudaStream_t stream);
void launch_adafactor(const UpdateArguments& arguments, cudaStream_t stream);
void launch_sgd(const UpdateArguments& arguments, cudaStream_t stream);

// What a launch passes by value: spans are for the host.
struct UpdateCall {
  std::byte* arena;
  const UpdateChunk* chunks;
  const UpdateFactors* factors;
  const UpdateResult* result;
  const uint8_t* nonzero;

  explicit UpdateCall(const UpdateArguments& a)
      : arena(a.arena),
        chunks(a.chunks),
        factors(a.factors),
        result(a.result),
        nonzero(a.nonzero) {}

  template <class T>
  __device__ T* at(int64_t offset) const {
    return offset < 0 ? nullptr : reinterpret_cast<T*>(arena + offset);
  }
};

// How gradients and weights of a chunk are scaled in this step.
struct UpdateScales {
  float gradient, keep, decay;

  __device__ UpdateScales(const UpdateFactors& factors, const UpdateResult& result, bool decays)
      : gradient(factors.gradient_scale * result.clip),
        keep(decays ? factors.keep : 1.0f),
        decay(decays ? factors.decay : 0.0f) {}
};

// AdamW as in optim/adamw-inl.h, rounded alike.
__device__ inline void adamw_element(float& w, float& m, float& v, float gradient,
                                     const UpdateFactors& f, const UpdateScales& s) {
  const float g = __fmul_rn(gradient, s.gradient);
  m = fmaf(g - m, f.new_m, m);
  v = fmaf(__fmul_rn(g, f.new_v), g, __fmul_rn(v, f.old_v));
  const float size = fmaf(sqrtf(v), f.v_correction, f.epsilon);
  w = fmaf(-f.step_size, m / size, __fmul_rn(w, s.keep));
}

__device__ inline float4& four_at(float* array, int i) {
  return *reinterpret_cast<float4*>(array + i);
}

template <class C>
__device__ inline void store_copy(C* copy, int i, const float4& w) {
  if constexpr (sizeof(C) == sizeof(float)) {
    four_at(copy, i) = w;
  } else {
    *reinterpret_cast<uint2*>(copy + i) = {pack_pair<C>(w.x, w.y), pack_pair<C>(w.z, w.w)};
  }
}

// Calls four(i) for the vectors of four elements of a chunk that are this thread's, and one(i) for
// what is left of them.
template <class Four, class One>
__device__ inline void over_chunk(int count, const Four& four, const One& one) {
#pragma unroll 2
  for (int n = 0; n < kChunkFours; ++n) {
    const int i = (n * kUpdateBlock + int(threadIdx.x)) * kFour;
    if (i + kFour > count) break;
    four(i);
  }
  const int rest = count % kFour;
  if (int(threadIdx.x) < rest) one(count - rest + int(threadIdx.x));
}

// Which vectors of the block's chunk have gradients in this warp, one bit for each turn of
// over_chunk(). The norm has read the same ones in the same threads.
__device__ inline uint32_t turns_with_gradient(const UpdateCall& call) {
  static_assert(kNonzeroBytes == kUpdateBlock / kWarp && kChunkFours <= 8);
  return call.nonzero ? call.nonzero[blockIdx.x * kNonzeroBytes + threadIdx.x / kWarp] : 0xffu;
}

// The block's chunk, whose weights, moments and gradients are all fp32. Most rows of a table of
// words have no gradient in a step: it is neither read nor set to zero again.
template <class C>
__device__ inline void adamw_chunk(const UpdateCall& call, const UpdateChunk& chunk) {
  float* const w = call.at<float>(chunk.weight);
  float* const g = call.at<float>(chunk.gradient);
  float *const m = call.at<float>(chunk.first), *const v = call.at<float>(chunk.second);
  C* const copy = call.at<C>(chunk.copy);
  const bool applied = call.result->applied, clears = !chunk.keeps_gradient;
  const UpdateFactors factors = *call.factors;
  const UpdateScales scales(factors, *call.result, chunk.decays);
  const uint32_t turns = turns_with_gradient(call);
  over_chunk(
      chunk.count,
      [&](int i) {
        const bool some = turns >> (i / (kUpdateBlock * kFour)) & 1;
        if (applied) {
          float4 w4 = four_at(w, i), m4 = four_at(m, i), v4 = four_at(v, i);
          const float4 g4 = some ? four_at(g, i) : float4{};
          adamw_element(w4.x, m4.x, v4.x, g4.x, factors, scales);
          adamw_element(w4.y, m4.y, v4.y, g4.y, factors, scales);
          adamw_element(w4.z, m4.z, v4.z, g4.z, factors, scales);
          adamw_element(w4.w, m4.w, v4.w, g4.w, factors, scales);
          four_at(w, i) = w4, four_at(m, i) = m4, four_at(v, i) = v4;
          if (copy) store_copy(copy, i, w4);
        }
        if (clears && some) four_at(g, i) = float4{};
      },
      [&](int i) {
        if (applied) {
          float w1 = w[i], m1 = m[i], v1 = v[i];
          adamw_element(w1, m1, v1, g[i], factors, scales);
          w[i] = w1, m[i] = m1, v[i] = v1;
          if (copy) copy[i] = from_float<C>(w1);
        }
        if (clears) g[i] = 0.0f;
      });
}

// The eight elements from i on of an array of `count`, zeros behind its end; i below count. Arrays
// begin aligned, and i is a multiple of eight.
template <class T>
__device__ inline Eight eight_of(const T* array, int i, int count) {
  return i + kEight <= count ? load_eight<true>(array, i, count)
                             : load_eight<false>(array, i, count);
}
template <class T>
__device__ inline void store_eight_of(T* array, int i, int count, const Eight& eight) {
  if (i + kEight <= count) {
    store_eight<true>(array, i, count, eight);
  } else {
    store_eight<false>(array, i, count, eight);
  }
}

}  // namespace snug::cuda
