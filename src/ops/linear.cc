#include "ops/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/activation-inl.h"
#include "ops/columns-inl.h"
#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// y[rows, out] = activation(product + b). The product is in `pre`, which then keeps the argument or
// the slope, or else in y.
void BiasActivation(const LinearSpec& spec, int64_t rows, size_t out, const float* b, float* pre,
                    float* y) {
  with_activation(spec.activation, [&]<Activation kActivation>() HWY_ATTR {
    const FloatTag d;
    for (int64_t row = 0; row < rows; ++row) {
      float* const y_row = y + row * int64_t(out);
      float* const kept = pre ? pre + row * int64_t(out) : y_row;
      over_row(out, [&](size_t i, auto access) HWY_ATTR {
        FloatVector x = access.load(d, kept + i);
        if (b) x = hn::Add(x, access.load(d, b + i));
        if constexpr (is_gelu(kActivation)) {
          if (pre && spec.keeps_slope) {
            const Bent bent = gelu<kActivation>(x);
            access.store(bent.slope, d, kept + i);
            access.store(bent.value, d, y_row + i);
            return;
          }
        }
        if (pre) access.store(x, d, kept + i);
        access.store(activate<kActivation>(x), d, y_row + i);
      });
    }
  });
}

// y = activation(pre), as BiasActivation has computed it.
void ActivationOnly(Activation activation, size_t count, const float* pre, float* y) {
  with_activation(activation, [&]<Activation kActivation>() HWY_ATTR {
    const FloatTag d;
    over_row(count, [&](size_t i, auto access) HWY_ATTR {
      access.store(activate<kActivation>(access.load(d, pre + i)), d, y + i);
    });
  });
}

// dy *= activation', in place, and db (optional) += its column sums; columns [begin, end) of [rows,
// out].
void EpilogueGradient(Activation activation, int64_t rows, size_t out, size_t begin, size_t end,
                      const float* kept, float* dy, float* db) {
  with_activation(activation, [&]<Activation kActivation>() HWY_ATTR {
    const FloatTag d;
    add_column_sums(rows, begin, end, db, nullptr,
                    [&](int64_t row, size_t i, auto access, FloatVector& sum, FloatVector&)
                        HWY_ATTR {
                          const size_t at = size_t(row) * out + i;
                          sum = access.load(d, dy + at);
                          if constexpr (kActivation != Activation::kNone) {
                            sum = hn::Mul(sum, slope<kActivation>(access.load(d, kept + at)));
                            access.store(sum, d, dy + at);
                          }
                        });
  });
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "core/error.h"
#include "ops/cuda_workspace.h"
#include "ops/parallel.h"
#include "ops/products.h"

namespace snug {
namespace {

HWY_EXPORT(BiasActivation);
HWY_EXPORT(ActivationOnly);
HWY_EXPORT(EpilogueGradient);

// A weight stored [in, out] is the transpose of one stored [out, in]: each product becomes another
// of the three.
ProductDims product_dims(const Tensor& y, const Tensor& w) { return {y.rows, w.cols, w.rows}; }

size_t product_workspace(const Sizing& sizing) {
  return sizing.device.kind == DeviceKind::kCuda ? kProductWorkspaceBytes : 0;
}

}  // namespace

size_t Linear::workspace_bytes(const Sizing& sizing) const { return product_workspace(sizing); }
size_t LinearWeightGradient::workspace_bytes(const Sizing& sizing) const {
  return product_workspace(sizing);
}
size_t LinearInputGradient::workspace_bytes(const Sizing& sizing) const {
  if (sizing.device.kind != DeviceKind::kCuda || activation == Activation::kNone) {
    return product_workspace(sizing);
  }
  return std::max(kProductWorkspaceBytes, column_sum_bytes(sizing.out[0].cols, 1));
}

size_t AdapterGradient::workspace_bytes(const Sizing& sizing) const {
  return product_workspace(sizing);
}

size_t LinearEpilogueGradient::workspace_bytes(const Sizing& sizing) const {
  return sizing.device.kind == DeviceKind::kCuda ? column_sum_bytes(sizing.in[0].cols, 1) : 0;
}

void LinearEpilogueGradient::run(const Call& call) const {
  const Tensor& dy = call.in[0];
  over_ranges(dy.cols, kColumnGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EpilogueGradient)
    (activation, dy.rows, size_t(dy.cols), size_t(begin), size_t(end), call.in[1].f32(), dy.f32(),
     call.out[1].f32());
  });
}

void LinearWeightGradient::run(const Call& call) const {
  const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0];
  const bool swapped = layout == WeightLayout::kInOut;
  product_tn(product_dims(dy, dw), (swapped ? x : dy).f32(), (swapped ? dy : x).f32(), dw.f32());
}

void LinearInputGradient::run(const Call& call) const {
  const Tensor &dy = call.in[0], &w = call.in[1];
  const auto product = layout == WeightLayout::kOutIn ? product_nn : product_nt;
  product(product_dims(dy, w), dy.f32(), w.f32(), call.out[0].f32(),
          accumulate ? Write::kAdd : Write::kOverwrite);
  if (activation == Activation::kNone) return;
  SNUG_CHECK(!accumulate);
  const Tensor in[] = {call.out[0], call.in[2]};
  LinearEpilogueGradient(activation).run({.in = in, .out = call.out, .workspace = {}});
}

void AdapterGradient::run(const Call& call) const {
  const Tensor &dy = call.in[0], &u = call.in[1], &up = call.in[2], &du = call.out[0],
               &dup = call.out[1];
  const ProductDims dims{dy.rows, up.cols, up.rows, dy.cols, scale};
  const float* const columns = dy.f32() + first_column;
  if (du) product_nn(dims, columns, up.f32(), du.f32(), Write::kOverwrite);
  if (dup) product_tn(dims, columns, u.f32(), dup.f32());
}

void add_adapters(const Adapters& adapters, std::span<const Tensor> pairs, const Tensor& y) {
  for (size_t i = 0; i < adapters.first_columns.size(); ++i) {
    const Tensor &u = pairs[2 * i], &up = pairs[2 * i + 1];
    product_nt({u.rows, up.cols, up.rows, y.cols, adapters.scale}, u.f32(), up.f32(),
               y.f32() + adapters.first_columns[i], Write::kAdd);
  }
}

void write_adapter_gradients(const Adapters& adapters, const Node& node, size_t first_input,
                             ValueId dy, GradientWriter& writer) {
  for (size_t i = 0; i < adapters.first_columns.size(); ++i) {
    const ValueId u = node.inputs[first_input + 2 * i], up = node.inputs[first_input + 2 * i + 1];
    const auto du = writer.gradient_for(u), dup = writer.gradient_for(up);
    if (!du && !dup) continue;
    SNUG_CHECK(!du.accumulate);  // nobody else reads it
    writer.emit(std::make_shared<AdapterGradient>(adapters.first_columns[i], adapters.scale),
                {dy, dup ? writer.saved(u) : kNoValue, writer.saved(up)}, {du.value, dup.value});
  }
}

void Linear::run(const Call& call) const {
  const Tensor &x = call.in[0], &w = call.in[1], &b = call.in[2], &y = call.out[0];
  const bool out_in = spec.layout == WeightLayout::kOutIn;
  SNUG_CHECK(x.cols == (out_in ? w.cols : w.rows) && y.cols == (out_in ? w.rows : w.cols) &&
             x.rows == y.rows);
  float* const pre = call.out.size() > 1 ? call.out[1].f32() : nullptr;
  const auto product = out_in ? product_nt : product_nn;
  product(product_dims(y, w), x.f32(), w.f32(), pre ? pre : y.f32(), Write::kOverwrite);
  add_adapters(spec.adapters, call.in.subspan(3), pre ? call.out[1] : y);
  if (!b && spec.activation == Activation::kNone) return;
  over_ranges(y.rows, 1, [&](int64_t begin, int64_t end) {
    const int64_t skip = begin * y.cols;
    HWY_DYNAMIC_DISPATCH(BiasActivation)
    (spec, end - begin, size_t(y.cols), b.f32(), pre ? pre + skip : nullptr, y.f32() + skip);
  });
}

std::optional<Remake> remake_activation(Activation activation, const Node& node, size_t which) {
  if (which != 0 || !keeps_pre_activation(activation) || node.outputs.size() < 2 ||
      node.outputs[1] == kNoValue) {
    return {};
  }
  return Remake{
      std::make_shared<ActivationAgain>(activation), {node.outputs[1]}, Part::kActivations};
}

std::optional<Remake> Linear::remake(const Node& node, size_t which) const {
  if (spec.keeps_slope) return {};
  return remake_activation(spec.activation, node, which);
}

void ActivationAgain::run(const Call& call) const {
  const Tensor &pre = call.in[0], &y = call.out[0];
  SNUG_CHECK(pre.rows == y.rows && pre.cols == y.cols);
  over_ranges(y.rows, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ActivationOnly)
    (activation, size_t((end - begin) * y.cols), pre.f32() + begin * y.cols,
     y.f32() + begin * y.cols);
  });
}

void Linear::backward(const Node& node, GradientWriter& writer) const {
  const ValueId x = node.inputs[0], w = node.inputs[1], b = node.inputs[2];
  const ValueId dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  const auto db = b == kNoValue ? GradientWriter::Target() : writer.gradient_for(b);
  const auto dw = writer.gradient_for(w), dx = writer.gradient_for(x);
  if (!db && !dw && !dx && spec.adapters.first_columns.empty()) return;
  const bool bends = spec.activation != Activation::kNone;
  if (bends || db) {
    const ValueId kept =
        bends ? writer.saved(node.outputs[keeps_pre_activation(spec.activation)]) : kNoValue;
    const Activation activation = spec.keeps_slope ? Activation::kKeptSlope : spec.activation;
    writer.emit(std::make_shared<LinearEpilogueGradient>(activation), {dy, kept},
                {bends ? dy : kNoValue, db.value});
  }
  write_adapter_gradients(spec.adapters, node, 3, dy, writer);
  // The weight gradient first: it is the last to read x, whose memory dx may then take.
  if (dw) {
    writer.emit(std::make_shared<LinearWeightGradient>(spec.layout), {dy, writer.saved(x)},
                {dw.value});
  }
  if (dx) {
    writer.emit(std::make_shared<LinearInputGradient>(dx.accumulate, spec.layout),
                {dy, writer.saved(w)}, {dx.value});
  }
}

OpPtr linear(const LinearSpec& spec) { return std::make_shared<Linear>(spec); }

}  // namespace snug
#endif  // HWY_ONCE
