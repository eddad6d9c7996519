#include "ops/dropout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dropout.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/dropout_mask-inl.h"
#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// to = or += from * factor, one row. `to` may be `from`.
void MaskedRow(const DropoutMask& mask, const MaskRow& row, size_t n, bool add, const float* from,
               float* to) {
  const FloatTag d;
  over_masked_row(mask, row, n, [&](size_t i, auto access, FloatVector factor) HWY_ATTR {
    const FloatVector v = hn::Mul(access.load(d, from + i), factor);
    access.store(add ? hn::Add(v, access.load(d, to + i)) : v, d, to + i);
  });
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/error.h"
#include "ops/dropout.h"
#include "ops/parallel.h"

namespace snug {
namespace {

HWY_EXPORT(MaskedRow);

}  // namespace

void Dropout::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.rows == y.rows && x.cols == y.cols);
  const DropoutMask mask = dropout_mask(spec.p, spec.site, *call.step);
  over_ranges(y.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      MaskRow row;
      if (mask.on()) row = mask_row(*call.batch, spec.rows, s);
      HWY_DYNAMIC_DISPATCH(MaskedRow)
      (mask, row, size_t(y.cols), add, x.f32() + s * x.cols, y.f32() + s * y.cols);
    }
  });
}

void Dropout::backward(const Node& node, GradientWriter& writer) const {
  const ValueId dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  if (const auto dx = writer.gradient_for(node.inputs[0])) {
    writer.emit(std::make_shared<Dropout>(spec, dx.accumulate), {dy}, {dx.value});
  }
}

OpPtr dropout(const DropoutSpec& spec) { return std::make_shared<Dropout>(spec, false); }

}  // namespace snug
#endif  // HWY_ONCE
