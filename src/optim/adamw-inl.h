// One element of AdamW in every lane, whatever its moments are stored as. Included once per target.
#if defined(SNUG_OPTIM_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPTIM_ADAMW_INL_H_
#undef SNUG_OPTIM_ADAMW_INL_H_
#else
#define SNUG_OPTIM_ADAMW_INL_H_
#endif

#include <hwy/highway.h>

#include "optim/adamw.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The new weight; the moments become the new ones.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V adamw_element(D d, const AdamWFactors& f, V w, V gradient, V& m, V& v) {
  const V g = hn::Mul(gradient, hn::Set(d, f.gradient));
  m = hn::MulAdd(hn::Sub(g, m), hn::Set(d, f.new_m), m);
  v = hn::MulAdd(hn::Mul(g, hn::Set(d, f.new_v)), g, hn::Mul(v, hn::Set(d, f.old_v)));
  const V size = hn::MulAdd(hn::Sqrt(v), hn::Set(d, f.v_correction), hn::Set(d, f.epsilon));
  return hn::NegMulAdd(hn::Set(d, f.step_size), hn::Div(m, size), hn::Mul(w, hn::Set(d, f.keep)));
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
