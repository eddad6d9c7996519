// Activations of linear layers and their derivatives in fp32.
#pragma once

#include "core/error.h"
#include "cuda/rows.cuh"
#include "ops/linear.h"

namespace snug::cuda {

__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float kLog2E = 1.44269504f;

// exp(-x^2 / 2), and cdf(-|x|) of the standard normal distribution as that times r(t) t, t = 1 / (1 + 0.3 |x|). Unlike
// 1 + erf the tail has a small relative error everywhere; the polynomial is the one of ops/math-inl.h.
struct NormalTail {
  float bell, tail;
};
__device__ inline NormalTail normal_tail(float x) {
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
  return {bell, bell * (r * t)};
}

// tanh(z) = 2 sigmoid(2z) - 1 turns the tanh form of GELU into x * sigmoid(2z), z = sqrt(2/pi) (x + 0.044715 x^3).
inline constexpr float kGeluTanhScale = 2.0f * 0.79788456f, kGeluTanhCube = 0.044715f;
struct Sigmoid {
  float value, complement;  // which is 1 - value
};
__device__ inline Sigmoid gelu_tanh_gate(float x) {
  const float twice_z = kGeluTanhScale * x * fmaf(x * x, kGeluTanhCube, 1.0f);
  const float e = exp2_of(-kLog2E * fmaxf(twice_z, -80.0f));  // stays finite
  const float value = fast_reciprocal(1.0f + e);
  return {value, value * e};
}

template <Activation kActivation>
__device__ inline float activate(float x) {
  if constexpr (kActivation == Activation::kGelu) {
    return fmaf(-fabsf(x), normal_tail(x).tail, fmaxf(x, 0.0f));  // x cdf(x) on either side of zero
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return x * gelu_tanh_gate(x).value;
  } else if constexpr (kActivation == Activation::kTanh) {
    return tanhf(x);
  } else if constexpr (kActivation == Activation::kRelu) {
    return x < 0.0f ? 0.0f : x;  // lets NaN through
  } else {
    return x;
  }
}

// The derivative at what was kept: x, or y for tanh.
template <Activation kActivation>
__device__ inline float slope(float kept) {
  if constexpr (kActivation == Activation::kGelu) {
    constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
    const NormalTail normal = normal_tail(kept);
    const float cdf = kept < 0.0f ? normal.tail : 1.0f - normal.tail;
    return fmaf(kept * kDensity, normal.bell, cdf);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const Sigmoid gate = gelu_tanh_gate(kept);
    const float dz = fmaf(kept * kept, 3.0f * kGeluTanhCube, 1.0f);
    return fmaf(kept * gate.value * gate.complement * kGeluTanhScale, dz, gate.value);
  } else if constexpr (kActivation == Activation::kTanh) {
    return fmaf(-kept, kept, 1.0f);
  } else if constexpr (kActivation == Activation::kRelu) {
    return kept > 0.0f ? 1.0f : 0.0f;
  } else {
    return 1.0f;
  }
}

// Calls f with the activation as a compile-time constant; not for kNone.
template <class F>
void with_bending(Activation activation, const F& f) {
  if (activation == Activation::kGelu) return f.template operator()<Activation::kGelu>();
  if (activation == Activation::kGeluTanh) return f.template operator()<Activation::kGeluTanh>();
  if (activation == Activation::kTanh) return f.template operator()<Activation::kTanh>();
  SNUG_CHECK(activation == Activation::kRelu);
  return f.template operator()<Activation::kRelu>();
}

}  // namespace snug::cuda
