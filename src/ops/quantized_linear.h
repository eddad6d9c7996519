// A linear layer whose weight is int8 and stays as it is: y = activation(quantised(x) · wᵀ + b) by
// quantized_products.h. In backward the weight counts as the numbers it stands for, and quantising
// x as doing nothing (straight through).
#pragma once

#include "graph/op.h"
#include "ops/linear.h"

namespace snug {

struct QuantizedLinearSpec {
  Activation activation = Activation::kNone;
  Adapters adapters = {};
};

// inputs {x[rows, in], w[out, in] int8, scales[1, out] fp32, b[1, out] (optional), then u and up of
// each adapter} outputs {y[rows, out], pre[rows, out] if keeps_pre_activation()}; pre may be absent
// where no gradient is wanted
OpPtr quantized_linear(const QuantizedLinearSpec& spec);

// The operators by name, for their kernels on other devices.

// inputs {dy, w, scales}; outputs {dx (= or +=)}
class QuantizedLinearInputGradient final : public Op {
 public:
  explicit QuantizedLinearInputGradient(bool accumulate) : accumulate(accumulate) {}
  std::string_view name() const override { return "quantized_linear_input_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const bool accumulate;
};

class QuantizedLinear final : public Op {
 public:
  explicit QuantizedLinear(const QuantizedLinearSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "quantized_linear"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;
  std::optional<Remake> remake(const Node& node, size_t which) const override {
    return remake_activation(spec.activation, node, which);
  }

  const QuantizedLinearSpec spec;
};

}  // namespace snug
