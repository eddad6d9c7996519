// exp, tanh and the normal distribution on vectors, to a few units in the last place. Polynomials
// were fitted for the stated intervals (relative error below half an ulp in exact arithmetic). NaN
// stays NaN. Included once per target.
#if defined(SNUG_OPS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_MATH_INL_H_
#undef SNUG_OPS_MATH_INL_H_
#else
#define SNUG_OPS_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// exp(x) for x <= 88.37; infinity above; results below the smallest normal number are zero.
HWY_INLINE FloatVector vector_exp(FloatVector x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  constexpr float kLowest = -87.33654f;  // ln of the smallest normal number
  constexpr float kHighest = 88.37f;     // 2^n stays finite after rounding n
  // Comparisons instead of Min and Max, which on some targets would replace NaN.
  const auto too_low = hn::Lt(x, hn::Set(d, kLowest)), too_high = hn::Gt(x, hn::Set(d, kHighest));
  const FloatVector bounded = hn::IfThenElse(too_high, hn::Set(d, kHighest),
                                             hn::IfThenElse(too_low, hn::Set(d, kLowest), x));
  const auto n = hn::Round(hn::Mul(bounded, hn::Set(d, 1.44269504f)));
  // ln 2 in two parts, the first with few bits, so that n * first is exact.
  FloatVector r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), bounded);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // exp(r) = 1 + r + r^2 p(r) on |r| <= ln(2) / 2.
  FloatVector p = hn::Set(d, 0.00138138681f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.008369069f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416684224f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665177f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.499999933f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  const FloatVector value = hn::Mul(p, hn::BitCast(d, exponent));
  const FloatVector infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  return hn::IfThenZeroElse(too_low, hn::IfThenElse(too_high, infinity, value));
}

HWY_INLINE FloatVector vector_tanh(FloatVector x) {
  const FloatTag d;
  const FloatVector one = hn::Set(d, 1.0f), size = hn::Abs(x);
  // Near zero: x + x u p(u), u = x^2, on |x| <= 0.65.
  const FloatVector u = hn::Mul(x, x);
  FloatVector p = hn::Set(d, -0.00552862459f);
  p = hn::MulAdd(p, u, hn::Set(d, 0.0204833065f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.0536929645f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.133308997f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.333332629f));
  const FloatVector near = hn::MulAdd(hn::Mul(x, u), p, x);
  // Elsewhere: 1 - 2 / (exp(2|x|) + 1), with the sign of x.
  const FloatVector e = vector_exp(hn::Add(size, size));
  const FloatVector far = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625f)), near, hn::CopySign(far, x));
}

// value = 1 / (1 + exp(-x)) and its complement 1 - value, both to a few units in the last place.
struct Sigmoid {
  FloatVector value, complement;
};

HWY_INLINE Sigmoid vector_sigmoid(FloatVector x) {
  const FloatTag d;
  const FloatVector one = hn::Set(d, 1.0f), lowest = hn::Set(d, -80.0f);  // keeps exp(-x) finite
  const FloatVector e = vector_exp(hn::Neg(hn::IfThenElse(hn::Lt(x, lowest), lowest, x)));
  const FloatVector value = hn::Div(one, hn::Add(one, e));
  return {value, hn::Mul(value, e)};
}

// The standard normal distribution: cdf(x) = (1 + erf(x / sqrt 2)) / 2 and exp(-x^2 / 2).
struct Normal {
  FloatVector cdf, bell;
};

// The tail cdf(-|x|) = exp(-x^2/2) r(t), t = 1/(1 + 0.3|x|), on |x| <= 13.3, has a small relative
// error everywhere, unlike 1 + erf, which cancels for negative x.
HWY_INLINE Normal vector_normal(FloatVector x) {
  const FloatTag d;
  const FloatVector one = hn::Set(d, 1.0f);
  const FloatVector bell = vector_exp(hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f)));
  const FloatVector t = hn::Div(one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.3f), one));
  FloatVector r = hn::Set(d, 0.0360364008f);
  r = hn::MulAdd(r, t, hn::Set(d, -0.158714059f));
  r = hn::MulAdd(r, t, hn::Set(d, 0.208965431f));
  r = hn::MulAdd(r, t, hn::Set(d, -0.0560967233f));
  r = hn::MulAdd(r, t, hn::Set(d, 0.129843902f));
  r = hn::MulAdd(r, t, hn::Set(d, 0.0995229037f));
  r = hn::MulAdd(r, t, hn::Set(d, 0.12081692f));
  r = hn::MulAdd(r, t, hn::Set(d, 0.119625164f));
  const FloatVector tail = hn::Mul(bell, hn::Mul(r, t));
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(negative, tail, hn::Sub(one, tail)), bell};
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
