// What the updates of all optimizers share. Each walks the table of chunks, one block a chunk;
// whether the update applies, and the factor of clipping, are in the result that the norm left.
#pragma once

#include <type_traits>

#include "core/dtype.h"
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
  const uint8_t* seen;

  explicit UpdateCall(const UpdateArguments& a)
      : arena(a.arena), chunks(a.chunks), factors(a.factors), result(a.result), seen(a.seen) {}

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
    *reinterpret_cast<uint2*>(copy + i) = packed<C>(w);
  }
}

// Two neighbouring numbers in their halves, see split_float().
struct HalfPairs {
  uint32_t upper, lower;

  __device__ HalfPairs(uint32_t upper, uint32_t lower) : upper(upper), lower(lower) {}
  __device__ HalfPairs(float first, float second) {
    const uint32_t bits[2] = {of_number(first), of_number(second)};
    upper = __byte_perm(bits[0] + 0x8000u, bits[1] + 0x8000u, 0x7632);
    lower = __byte_perm(bits[0], bits[1], 0x5410);
  }
  __device__ float first() const {
    return __uint_as_float((upper << 16) + uint32_t(int32_t(lower << 16) >> 16));
  }
  __device__ float second() const {
    return __uint_as_float((upper & 0xffff0000u) + uint32_t(int32_t(lower) >> 16));
  }

 private:
  __device__ static uint32_t of_number(float value) {
    return isnan(value) ? 0x7fc00000u : __float_as_uint(value);
  }
};

// The weights of a stretch, for who changes them: in fp32 and maybe a copy of type C, or in halves,
// the upper ones in the copy's place.
template <class C, bool kSplit>
struct Weights {
  static_assert(!kSplit || sizeof(C) == sizeof(uint16_t));
  float* exact;     // or
  uint16_t* lower;  // the same address
  C* copy;          // or null; not where weights are split

  __device__ Weights(std::byte* weight, C* copy)
      : exact(reinterpret_cast<float*>(weight)),
        lower(reinterpret_cast<uint16_t*>(weight)),
        copy(copy) {}

  __device__ float one(int64_t i) const {
    if constexpr (!kSplit) return exact[i];
    return __uint_as_float(join_float({upper()[i], lower[i]}));
  }
  __device__ void set_one(int64_t i, float w) const {
    if constexpr (kSplit) {
      const FloatHalves halves = split_float(__float_as_uint(w));
      upper()[i] = halves.upper, lower[i] = halves.lower;
    } else {
      exact[i] = w;
      if (copy) copy[i] = from_float<C>(w);
    }
  }
  // From i on, which is a multiple of four.
  __device__ float4 four(int i) const {
    if constexpr (!kSplit) return four_at(exact, i);
    const uint2 high = *reinterpret_cast<const uint2*>(upper() + i),
                low = *reinterpret_cast<const uint2*>(lower + i);
    const HalfPairs front(high.x, low.x), back(high.y, low.y);
    return {front.first(), front.second(), back.first(), back.second()};
  }
  __device__ void set_four(int i, const float4& w) const {
    if constexpr (kSplit) {
      const HalfPairs front(w.x, w.y), back(w.z, w.w);
      *reinterpret_cast<uint2*>(upper() + i) = {front.upper, back.upper};
      *reinterpret_cast<uint2*>(lower + i) = {front.lower, back.lower};
    } else {
      four_at(exact, i) = w;
      if (copy) store_copy(copy, i, w);
    }
  }

 private:
  __device__ uint16_t* upper() const { return reinterpret_cast<uint16_t*>(copy); }
};

// The gradients of a stretch, for who reads them. Those in bf16 are written anew by every step, so
// that nobody clears them.
template <GradientForm kForm>
struct Gradients {
  static constexpr bool kHalves = kForm == GradientForm::kRounded;
  using Element = std::conditional_t<kHalves, __nv_bfloat16, float>;
  Element* at;

  __device__ explicit Gradients(std::byte* gradient) : at(reinterpret_cast<Element*>(gradient)) {}

  __device__ float one(int64_t i) const { return read(to_float(at[i])); }
  // From i on, which is a multiple of four.
  __device__ float4 four(int i) const {
    if constexpr (kHalves) {
      return unpacked<__nv_bfloat16>(*reinterpret_cast<const uint2*>(at + i));
    } else {
      const float4 g = four_at(at, i);
      return {read(g.x), read(g.y), read(g.z), read(g.w)};
    }
  }
  __device__ void clear_one(int64_t i) const {
    if constexpr (!kHalves) at[i] = 0.0f;
  }
  __device__ void clear_four(int i) const {
    if constexpr (!kHalves) four_at(at, i) = float4{};
  }

 private:
  __device__ static float read(float g) {
    return kForm == GradientForm::kRounds ? to_float(from_float<__nv_bfloat16>(g)) : g;
  }
};

// f<kForm>() for the form.
template <class F>
__device__ inline void with_gradient_form(GradientForm form, const F& f) {
  switch (form) {
    case GradientForm::kExact:
      return f.template operator()<GradientForm::kExact>();
    case GradientForm::kRounds:
      return f.template operator()<GradientForm::kRounds>();
    case GradientForm::kRounded:
      return f.template operator()<GradientForm::kRounded>();
  }
}

// f<kSplit>(): copies of other types are not halves.
template <class C, class F>
__device__ inline void with_split(bool split, const F& f) {
  if constexpr (std::is_same_v<C, __nv_bfloat16>) {
    if (split) return f.template operator()<true>();
  }
  f.template operator()<false>();
}

// f<kSplit, kForm>() for a chunk: only gradients of weights that are split are rounded.
template <class C, class F>
__device__ inline void with_halves(const UpdateChunk& chunk, const F& f) {
  with_split<C>(chunk.split, [&]<bool kSplit>() {
    if constexpr (kSplit) {
      with_gradient_form(chunk.gradient_form,
                         [&]<GradientForm kForm>() { f.template operator()<true, kForm>(); });
    } else {
      f.template operator()<false, GradientForm::kExact>();
    }
  });
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
struct SeenGradients {
  static_assert(kSeenBytes == kUpdateBlock / kWarp && kChunkFours <= 4);
  uint8_t bits;

  __device__ explicit SeenGradients(uint8_t bits) : bits(bits) {}
  __device__ explicit SeenGradients(const UpdateCall& call)
      : bits(call.seen ? call.seen[blockIdx.x * kSeenBytes + threadIdx.x / kWarp] : 0xff) {}

  __device__ SeenGradients after(uint32_t found) const {
    return SeenGradients(uint8_t(found | ((bits >> 4 | found) << 4)));
  }
  __device__ bool now(int turn) const { return bits >> turn & 1; }
  __device__ bool ever(int turn) const { return bits >> (turn + 4) & 1; }
};

// The block's chunk, whose moments are fp32. Most rows of a table of words have no gradient in a
// step: it is neither read nor set to zero again. Words that no text has had yet have no moments
// either, and do not move but by decay.
template <class C, bool kSplit, GradientForm kForm>
__device__ inline void adamw_chunk(const UpdateCall& call, const UpdateChunk& chunk) {
  const Weights<C, kSplit> w(call.at<std::byte>(chunk.weight), call.at<C>(chunk.copy));
  const Gradients<kForm> g(call.at<std::byte>(chunk.gradient));
  float *const m = call.at<float>(chunk.first), *const v = call.at<float>(chunk.second);
  const bool applied = call.result->applied, clears = !chunk.keeps_gradient;
  const UpdateFactors factors = *call.factors;
  const UpdateScales scales(factors, *call.result, chunk.decays);
  const SeenGradients seen(call);
  const bool all_move = scales.keep != 1.0f || factors.epsilon == 0.0f;
  over_chunk(
      chunk.count,
      [&](int i) {
        const int turn = i / (kUpdateBlock * kFour);
        const bool some = seen.now(turn);
        if (applied && (all_move || seen.ever(turn))) {
          float4 w4 = w.four(i), m4 = four_at(m, i), v4 = four_at(v, i);
          const float4 g4 = some ? g.four(i) : float4{};
          adamw_element(w4.x, m4.x, v4.x, g4.x, factors, scales);
          adamw_element(w4.y, m4.y, v4.y, g4.y, factors, scales);
          adamw_element(w4.z, m4.z, v4.z, g4.z, factors, scales);
          adamw_element(w4.w, m4.w, v4.w, g4.w, factors, scales);
          w.set_four(i, w4), four_at(m, i) = m4, four_at(v, i) = v4;
        }
        if (clears && some) g.clear_four(i);
      },
      [&](int i) {
        if (applied) {
          float w1 = w.one(i), m1 = m[i], v1 = v[i];
          adamw_element(w1, m1, v1, g.one(i), factors, scales);
          w.set_one(i, w1), m[i] = m1, v[i] = v1;
        }
        if (clears) g.clear_one(i);
      });
}
template <class C>
__device__ inline void adamw_chunk(const UpdateCall& call, const UpdateChunk& chunk) {
  with_halves<C>(chunk, [&]<bool kSplit, GradientForm kForm>() {
    adamw_chunk<C, kSplit, kForm>(call, chunk);
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
// The same of Weights or Gradients.
template <class Numbers>
requires requires(const Numbers& numbers) { numbers.four(0); }
__device__ inline Eight eight_of(const Numbers& numbers, int i, int count) {
  Eight eight;
  if (i + kEight <= count) {
    const float4 front = numbers.four(i), back = numbers.four(i + kFour);
    return {{front.x, front.y, front.z, front.w, back.x, back.y, back.z, back.w}};
  }
  for (int e = 0; e < kEight; ++e) eight.at[e] = i + e < count ? numbers.one(i + e) : 0.0f;
  return eight;
}
template <class C, bool kSplit>
__device__ inline void store_eight_of(const Weights<C, kSplit>& w, int i, int count,
                                      const Eight& eight) {
  const auto& at = eight.at;
  if (i + kEight <= count) {
    w.set_four(i, {at[0], at[1], at[2], at[3]});
    w.set_four(i + kFour, {at[4], at[5], at[6], at[7]});
  } else {
    for (int e = 0; i + e < count; ++e) w.set_one(i + e, at[e]);
  }
}

}  // namespace snug::cuda
