#include "ops/quantized_linear.h"

#include "core/error.h"
#include "ops/cuda_workspace.h"
#include "ops/quantized_products.h"

namespace snug {
namespace {

QuantizedMatrix matrix(const Tensor& w, const Tensor& scales) {
  SNUG_CHECK(w.dtype == DType::kI8 && scales.size() == w.rows);
  return {static_cast<const int8_t*>(w.data), scales.f32()};
}

}  // namespace

size_t QuantizedLinear::workspace_bytes(const Sizing& sizing) const {
  const TensorDesc &x = sizing.in[0], &w = sizing.in[1];
  if (sizing.device.kind == DeviceKind::kCpu) {
    return quantized_product_workspace(w.cols, sizing.device.threads);
  }
  return QuantizedLinearWorkspace(x.row_count(sizing.dims), w.cols, w.rows, dtype_bytes(x.dtype))
      .bytes;
}

void QuantizedLinear::run(const Call& call) const {
  const Tensor &x = call.in[0], &w = call.in[1], &b = call.in[3], &y = call.out[0];
  SNUG_CHECK(x.cols == w.cols && y.cols == w.rows && x.rows == y.rows);
  const Tensor kept = call.out.size() > 1 ? call.out[1] : Tensor();
  QuantizedResult result{
      .bias = b.f32(), .activation = spec.activation, .pre = kept.f32(), .y = y.f32()};
  const bool adapted = !spec.adapters.first_columns.empty();
  const Tensor& argument = kept ? kept : y;
  if (adapted) {
    result = {.bias = b.f32(), .y = argument.f32()};  // the activation waits for the adapters
  }
  quantized_product_nt({x.rows, w.cols, w.rows}, x.f32(), matrix(w, call.in[2]), result,
                       call.workspace);
  if (!adapted) return;
  add_adapters(spec.adapters, call.in.subspan(4), argument);
  if (spec.activation != Activation::kNone) {
    ActivationAgain(spec.activation).run({.in = {&argument, 1}, .out = {&y, 1}, .workspace = {}});
  }
}

void QuantizedLinear::backward(const Node& node, GradientWriter& writer) const {
  const ValueId x = node.inputs[0], b = node.inputs[3], dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  const auto db = b == kNoValue ? GradientWriter::Target() : writer.gradient_for(b);
  const auto dx = writer.gradient_for(x);
  if (!db && !dx && spec.adapters.first_columns.empty()) return;
  const bool bends = spec.activation != Activation::kNone;
  if (bends || db) {
    const ValueId kept =
        bends ? writer.saved(node.outputs[keeps_pre_activation(spec.activation)]) : kNoValue;
    writer.emit(std::make_shared<LinearEpilogueGradient>(spec.activation), {dy, kept},
                {bends ? dy : kNoValue, db.value});
  }
  write_adapter_gradients(spec.adapters, node, 4, dy, writer);
  if (dx) {
    writer.emit(std::make_shared<QuantizedLinearInputGradient>(dx.accumulate),
                {dy, node.inputs[1], node.inputs[2]}, {dx.value});
  }
}

size_t QuantizedLinearInputGradient::workspace_bytes(const Sizing& sizing) const {
  const TensorDesc &dy = sizing.in[0], &w = sizing.in[1];
  if (sizing.device.kind == DeviceKind::kCpu) return dequantized_product_workspace(w.cols, w.rows);
  return DequantizedWorkspace(w.cols, w.rows, dtype_bytes(dy.dtype)).bytes;
}

void QuantizedLinearInputGradient::run(const Call& call) const {
  const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  SNUG_CHECK(dy.cols == w.rows && dx.cols == w.cols && dx.rows == dy.rows);
  dequantized_product_nn({dy.rows, w.cols, w.rows}, dy.f32(), matrix(w, call.in[2]), dx.f32(),
                         accumulate ? Write::kAdd : Write::kOverwrite, call.workspace);
}

OpPtr quantized_linear(const QuantizedLinearSpec& spec) {
  return std::make_shared<QuantizedLinear>(spec);
}

}  // namespace snug
