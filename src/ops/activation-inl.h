// Activations of linear layers and their derivatives on vectors. Included once per target.
#if defined(SNUG_OPS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_ACTIVATION_INL_H_
#undef SNUG_OPS_ACTIVATION_INL_H_
#else
#define SNUG_OPS_ACTIVATION_INL_H_
#endif

#include <hwy/highway.h>

#include "ops/linear.h"
#include "ops/math-inl.h"
#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// tanh(z) = 2 sigmoid(2z) - 1 turns the tanh form of GELU into x * sigmoid(2z), z = sqrt(2/pi) (x +
// 0.044715 x^3).
constexpr float kGeluTanhScale = 2.0f * 0.79788456f, kGeluTanhCube = 0.044715f;

HWY_INLINE Sigmoid gelu_tanh_gate(FloatVector x) {
  const FloatTag d;
  const FloatVector cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, kGeluTanhCube), hn::Set(d, 1.0f));
  return vector_sigmoid(hn::Mul(hn::Set(d, kGeluTanhScale), hn::Mul(x, cubic)));
}

// GELU and its derivative, which share most of their work.
struct Bent {
  FloatVector value, slope;
};

template <Activation kForm>
HWY_INLINE Bent gelu(FloatVector x) {
  static_assert(is_gelu(kForm));
  const FloatTag d;
  if constexpr (kForm == Activation::kGelu) {
    constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
    const Normal normal = vector_normal(x);
    return {hn::Mul(x, normal.cdf),
            hn::MulAdd(hn::Mul(x, hn::Set(d, kDensity)), normal.bell, normal.cdf)};
  } else {
    const Sigmoid gate = gelu_tanh_gate(x);
    const FloatVector dz =
        hn::MulAdd(hn::Mul(x, x), hn::Set(d, 3.0f * kGeluTanhCube), hn::Set(d, 1.0f));
    const FloatVector bend = hn::Mul(hn::Mul(x, gate.value), gate.complement);
    return {hn::Mul(x, gate.value),
            hn::MulAdd(hn::Mul(bend, hn::Set(d, kGeluTanhScale)), dz, gate.value)};
  }
}

template <Activation kActivation>
HWY_INLINE FloatVector activate(FloatVector x) {
  const FloatTag d;
  if constexpr (is_gelu(kActivation)) {
    return gelu<kActivation>(x).value;
  } else if constexpr (kActivation == Activation::kTanh) {
    return vector_tanh(x);
  } else if constexpr (kActivation == Activation::kRelu) {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);  // lets NaN through
  } else {
    return x;
  }
}

// The derivative at what was kept: x, or y for tanh; or what was kept itself.
template <Activation kActivation>
HWY_INLINE FloatVector slope(FloatVector kept) {
  const FloatTag d;
  const FloatVector one = hn::Set(d, 1.0f);
  if constexpr (is_gelu(kActivation)) {
    return gelu<kActivation>(kept).slope;
  } else if constexpr (kActivation == Activation::kKeptSlope) {
    return kept;
  } else if constexpr (kActivation == Activation::kTanh) {
    return hn::NegMulAdd(kept, kept, one);
  } else if constexpr (kActivation == Activation::kRelu) {
    return hn::IfThenElseZero(hn::Gt(kept, hn::Zero(d)), one);
  } else {
    return one;
  }
}

// Calls f with the activation as a compile-time constant.
template <class F>
HWY_INLINE void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kNone:
      return f.template operator()<Activation::kNone>();
    case Activation::kGelu:
      return f.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return f.template operator()<Activation::kGeluTanh>();
    case Activation::kTanh:
      return f.template operator()<Activation::kTanh>();
    case Activation::kRelu:
      return f.template operator()<Activation::kRelu>();
    case Activation::kKeptSlope:
      return f.template operator()<Activation::kKeptSlope>();
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
