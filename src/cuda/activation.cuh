// Activations of linear layers and their derivatives in fp32.
#pragma once

#include "core/error.h"
#include "cuda/rows.cuh"
#include "ops/linear.h"

namespace snug::cuda {

inline constexpr float kLog2E = 1.44269504f, kNormalDensity = 0.39894228f;  // 1 / sqrt(2 pi)

// GELU and its derivative, which share most of their work. No product is left to be contracted with
// a sum: all kernels get the same bits.
struct Bent {
  float value, slope;
};

// exp(-x^2 / 2), and cdf(-|x|) of the standard normal distribution as that times r(t) t, t = 1 / (1
// + 0.3 |x|). Unlike 1 + erf the tail has a small relative error everywhere; the polynomial is the
// one of ops/math-inl.h.
__device__ inline Bent exact_gelu(float x) {
  const float bell = exp2_of(x * x * (-0.5f * kLog2E));
  const float t = fast_reciprocal(fmaf(fabsf(x), 0.3f, 1.0f));
  float r = 0.0360364008f;
  r = fmaf(r, t, -0.158714059f);
  r = fmaf(r, t, 0.208965431f);
  r = fmaf(r, t, -0.0560967233f);
  r = fmaf(r, t, 0.129843902f);
  r = fmaf(r, t, 0.0995229037f);
  r = fmaf(r, t, 0.12081692f);
  r = fmaf(r, t, 0.119625164f);
  const float tail = bell * (r * t), cdf = x < 0.0f ? tail : __fsub_rn(1.0f, tail);
  return {fmaf(-fabsf(x), tail, fmaxf(x, 0.0f)),  // x cdf(x) on either side of zero
          fmaf(x * kNormalDensity, bell, cdf)};
}

// The same for half types: cdf(-|x|) is exp(-x^2 / 2) p(|x|), within 7.5e-6, as are GELU and its
// derivative. p was fitted for |x| <= 7 by the largest error of max(1, |x|) cdf, with p(0) = 1/2;
// the derivative's mean error over a normal distribution is below 1e-7. NaN stays NaN by way of the
// bell.
__device__ inline Bent short_gelu(float x) {
  const float bell = exp2_of(x * x * (-0.5f * kLog2E)), size = fminf(fabsf(x), 7.0f);
  float p = -0.000140462536f;
  p = fmaf(p, size, 0.00204757717f);
  p = fmaf(p, size, -0.0129401293f);
  p = fmaf(p, size, 0.0482780226f);
  p = fmaf(p, size, -0.124512345f);
  p = fmaf(p, size, 0.247549802f);
  p = fmaf(p, size, -0.398701727f);
  p = fmaf(p, size, 0.5f);
  // With the sign of x: the derivative less 1/2 is odd.
  const float above_half = fmaf(bell, fmaf(size, kNormalDensity, -p), 0.5f);
  return {fmaf(-size, bell * p, fmaxf(x, 0.0f)), 0.5f + copysignf(above_half, x)};
}

// tanh(z) = 2 sigmoid(2z) - 1 turns the tanh form of GELU into x * sigmoid(2z), z = sqrt(2/pi) (x +
// 0.044715 x^3).
__device__ inline Bent tanh_gelu(float x) {
  constexpr float kScale = 2.0f * 0.79788456f, kCube = 0.044715f;
  const float square = x * x, twice_z = kScale * x * fmaf(square, kCube, 1.0f);
  const float e = exp2_of(-kLog2E * fmaxf(twice_z, -80.0f));  // stays finite
  const float gate = fast_reciprocal(1.0f + e), value = x * gate;
  return {value, fmaf(value * (gate * e) * kScale, fmaf(square, 3.0f * kCube, 1.0f), gate)};
}

// As accurate as the type it is rounded to asks for.
template <Activation kForm, class T>
__device__ inline Bent gelu(float x) {
  static_assert(is_gelu(kForm));
  if constexpr (kForm == Activation::kGeluTanh) {
    return tanh_gelu(x);
  } else if constexpr (sizeof(T) < sizeof(float)) {
    return short_gelu(x);
  } else {
    return exact_gelu(x);
  }
}

template <Activation kActivation, class T>
__device__ inline float activate(float x) {
  if constexpr (is_gelu(kActivation)) {
    return gelu<kActivation, T>(x).value;
  } else if constexpr (kActivation == Activation::kTanh) {
    return tanhf(x);
  } else if constexpr (kActivation == Activation::kRelu) {
    return x < 0.0f ? 0.0f : x;  // lets NaN through
  } else {
    return x;
  }
}

// Whether layers of a type keep GELU's slopes as SlopeBytes.
template <class T>
inline constexpr bool kSlopesAreBytes = std::is_same_v<T, __nv_bfloat16>;

// Numbers in [2^23, 2^24) have their last bit at 1.
inline constexpr float kWholeNumbers = 0x1p23f;

// The byte of a slope, the lowest of the result.
__device__ inline uint32_t slope_byte(float slope) {
  return __float_as_uint(fmaf(slope, SlopeBytes::kStepsOfOne, kWholeNumbers + SlopeBytes::kZero));
}
// Those of two columns and of the two eight further on.
__device__ inline uint32_t slope_bytes(float2 here, float2 further) {
  const uint32_t low = __byte_perm(slope_byte(here.x), slope_byte(here.y), 0x0040),
                 high = __byte_perm(slope_byte(further.x), slope_byte(further.y), 0x0040);
  return __byte_perm(low, high, 0x5410);
}
__device__ inline float slope_of_byte(uint32_t word, uint32_t byte) {
  const uint32_t whole = __byte_perm(word, __float_as_uint(kWholeNumbers), 0x7440 | byte);
  return (__uint_as_float(whole) - (kWholeNumbers + SlopeBytes::kZero)) *
         (1.0f / SlopeBytes::kStepsOfOne);
}

// The derivative at what was kept: x, or y for tanh; or what was kept itself. GELU's is rounded as
// it would be kept, so that nothing depends on which of the two is.
template <Activation kActivation, class T>
__device__ inline float slope(float kept) {
  if constexpr (is_gelu(kActivation)) {
    const float exact = gelu<kActivation, T>(kept).slope;
    return kSlopesAreBytes<T> ? slope_of_byte(slope_byte(exact), 0)
                              : to_float(from_float<T>(exact));
  } else if constexpr (kActivation == Activation::kKeptSlope) {
    return kept;
  } else if constexpr (kActivation == Activation::kTanh) {
    return fmaf(-kept, kept, 1.0f);
  } else if constexpr (kActivation == Activation::kRelu) {
    return kept > 0.0f ? 1.0f : 0.0f;
  } else {
    return 1.0f;
  }
}

// Calls f with the form of GELU as a compile-time constant.
template <class F>
void with_gelu(Activation form, const F& f) {
  SNUG_CHECK(is_gelu(form));
  if (form == Activation::kGelu) return f.template operator()<Activation::kGelu>();
  return f.template operator()<Activation::kGeluTanh>();
}

// The same with any activation but kNone.
template <class F>
void with_bending(Activation activation, const F& f) {
  if (is_gelu(activation)) return with_gelu(activation, f);
  if (activation == Activation::kTanh) return f.template operator()<Activation::kTanh>();
  SNUG_CHECK(activation == Activation::kRelu);
  return f.template operator()<Activation::kRelu>();
}

}  // namespace snug::cuda
