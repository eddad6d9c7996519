// Kernels of update.h. All three walk the same table of chunks; the factor of clipping travels from the second to the
// third in the result.
#include "cuda/update.h"

#include "core/error.h"
#include "cuda/check.h"
#include "cuda/rows.cuh"

namespace snug::cuda {
namespace {

constexpr int kBlock = 256, kFour = 4;
constexpr int kVectors = kUpdateChunk / (kBlock * kFour);  // of four elements, per thread and chunk
static_assert(kVectors * kBlock * kFour == kUpdateChunk);

// fp32 within a chunk, where a thread adds few squares, fp64 across.
__global__ void __launch_bounds__(kBlock)
    squares_kernel(const float* gradients, const UpdateChunk* chunks, int64_t chunk_count, double* partials) {
  double total = 0.0;
  for (int64_t c = blockIdx.x; c < chunk_count; c += gridDim.x) {
    const UpdateChunk chunk = chunks[c];
    const float* const g = gradients + chunk.offset;
    float4 fours[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = (v * kBlock + int(threadIdx.x)) * kFour;
      fours[v] = i + kFour <= chunk.count ? *reinterpret_cast<const float4*>(g + i) : float4{};
    }
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float4 f = fours[v];
      sum += fmaf(f.x, f.x, f.y * f.y) + fmaf(f.z, f.z, f.w * f.w);
    }
    const int rest = chunk.count % kFour;  // behind the last whole vector
    if (int(threadIdx.x) < rest) {
      const float last = g[chunk.count - rest + int(threadIdx.x)];
      sum = fmaf(last, last, sum);
    }
    total += double(sum);
  }
  total = block_sum(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kNormPartials)
    decide_kernel(const double* partials, int count, const UpdateFactors* factors, double* loss, UpdateResult* result) {
  const double squares = block_sum(int(threadIdx.x) < count ? partials[threadIdx.x] : 0.0);
  if (threadIdx.x > 0) return;
  const double norm = sqrt(squares) * double(factors->gradient_scale), max_norm = double(factors->max_norm);
  const double clip = max_norm > 0.0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
  *result = {.loss = *loss,
             .gradient_norm = norm,
             .applied = isfinite(*loss) && isfinite(norm),
             .clip = float(clip)};
  *loss = 0.0;
}

struct Element {
  float w, g, m, v;
};

// AdamW as in optim/adamw.cc, rounded alike.
__device__ inline void update(Element& e, const UpdateFactors& f, float gradient, float keep) {
  const float g = __fmul_rn(e.g, gradient);
  e.m = fmaf(g - e.m, f.new_m, e.m);
  e.v = fmaf(__fmul_rn(g, f.new_v), g, __fmul_rn(e.v, f.old_v));
  const float size = fmaf(sqrtf(e.v), f.v_correction, f.epsilon);
  e.w = fmaf(-f.step_size, e.m / size, __fmul_rn(e.w, keep));
  e.g = 0.0f;
}

// Where the arrays of a chunk begin. C: type of the copy.
template <class C>
struct ChunkArrays {
  float *w, *g, *m, *v;
  C* copy;  // or null

  __device__ ChunkArrays(const UpdateArguments& a, const UpdateChunk& chunk)
      : w(a.weights + chunk.offset),
        g(a.gradients + chunk.offset),
        m(a.moments + chunk.first),
        v(a.moments + chunk.second),
        copy(a.copies && chunk.copy_offset >= 0 ? static_cast<C*>(a.copies) + chunk.copy_offset : nullptr) {}
};

__device__ inline float4& four_at(float* array, int i) { return *reinterpret_cast<float4*>(array + i); }

template <class C>
__device__ inline void store_copy(C* copy, int i, const float4& w) {
  if constexpr (sizeof(C) == sizeof(float)) {
    four_at(copy, i) = w;
  } else {
    *reinterpret_cast<uint2*>(copy + i) = {pack_pair<C>(w.x, w.y), pack_pair<C>(w.z, w.w)};
  }
}

// One block per chunk.
template <class C>
__global__ void __launch_bounds__(kBlock) update_kernel(const UpdateArguments a) {
  const UpdateChunk chunk = a.chunks[blockIdx.x];
  const ChunkArrays<C> at(a, chunk);
  const bool applied = a.result->applied;
  const UpdateFactors factors = *a.factors;
  const float gradient = factors.gradient_scale * a.result->clip, keep = chunk.decays ? factors.keep : 1.0f;
#pragma unroll 2
  for (int n = 0; n < kVectors; ++n) {
    const int i = (n * kBlock + int(threadIdx.x)) * kFour;
    if (i + kFour > chunk.count) break;
    if (applied) {
      const float4 g = four_at(at.g, i);
      float4 w = four_at(at.w, i), m = four_at(at.m, i), v = four_at(at.v, i);
      const auto one = [&](float& w1, float g1, float& m1, float& v1) {
        Element e = {w1, g1, m1, v1};
        update(e, factors, gradient, keep);
        w1 = e.w, m1 = e.m, v1 = e.v;
      };
      one(w.x, g.x, m.x, v.x), one(w.y, g.y, m.y, v.y), one(w.z, g.z, m.z, v.z), one(w.w, g.w, m.w, v.w);
      four_at(at.w, i) = w, four_at(at.m, i) = m, four_at(at.v, i) = v;
      if (at.copy) store_copy(at.copy, i, w);
    }
    if (!chunk.keeps_gradient) four_at(at.g, i) = float4{};
  }
  const int rest = chunk.count % kFour;  // behind the last whole vector
  if (int(threadIdx.x) >= rest) return;
  const int i = chunk.count - rest + int(threadIdx.x);
  if (applied) {
    Element e = {at.w[i], at.g[i], at.m[i], at.v[i]};
    update(e, factors, gradient, keep);
    at.w[i] = e.w, at.m[i] = e.m, at.v[i] = e.v;
    if (at.copy) at.copy[i] = from_float<C>(e.w);
  }
  if (!chunk.keeps_gradient) at.g[i] = 0.0f;
}

}  // namespace

void launch_update(const UpdateArguments& arguments, cudaStream_t stream) {
  const int partials = int(std::min<int64_t>(kNormPartials, arguments.chunk_count));
  if (partials > 0) {
    squares_kernel<<<unsigned(partials), kBlock, 0, stream>>>(arguments.gradients, arguments.chunks,
                                                              arguments.chunk_count, arguments.partials);
    SNUG_CUDA_LAUNCHED("squares");
  }
  decide_kernel<<<1, kNormPartials, 0, stream>>>(arguments.partials, partials, arguments.factors, arguments.loss,
                                                 arguments.result);
  SNUG_CUDA_LAUNCHED("decide");
  if (partials == 0) return;
  with_type(arguments.copy_dtype, [&]<class C>() {
    update_kernel<C><<<unsigned(arguments.chunk_count), kBlock, 0, stream>>>(arguments);
    SNUG_CUDA_LAUNCHED("update");
  });
}

}  // namespace snug::cuda
