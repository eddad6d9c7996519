// Residual connection, dropout and layer norm in one pass: sum = residual + dropout(x), y =
// norm(sum) * gamma + beta. `sum` is kept for backward; pre-norm models also carry it on as the
// next residual, and its gradient is then added in.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct ResidualNormSpec {
  int64_t hidden = 1;
  float eps = 1e-12f;
  float dropout = 0.0f;
  uint32_t site = 0;  // names the dropout mask
  Rows rows = Rows::kTokens;
};

// inputs {x[rows, hidden], residual[rows, hidden], gamma[1, hidden], beta[1, hidden]}
// outputs {y[rows, hidden], sum[rows, hidden], stats[rows, 2] (mean, 1 / deviation)}
// stats may be absent where no gradient is wanted; sum too (it is then not written)
OpPtr residual_norm(const ResidualNormSpec& spec);

struct LayerNormSpec {
  int64_t hidden = 1;
  float eps = 1e-5f;
};

// inputs {x[rows, hidden], gamma[1, hidden], beta[1, hidden]}; outputs {y[rows, hidden],
// stats[rows, 2]}
OpPtr layer_norm(const LayerNormSpec& spec);

// The operators by name, for their kernels on other devices.

// inputs {dy, gradient of sum from elsewhere (optional), sum, stats, gamma}
// outputs {dresidual, dx, dgamma (+=), dbeta (+=), dx's sum over rows (+=)}, each optional; the
// last, which is the gradient of the bias in front, comes from fusing and never together with add_x
class NormGradient final : public Op {
 public:
  struct Spec {
    float dropout = 0.0f;
    uint32_t site = 0;
    bool add_residual = false, add_x = false;
    Rows rows = Rows::kTokens;
  };
  explicit NormGradient(const Spec& spec) : spec(spec) {}
  std::string_view name() const override { return "norm_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const Spec spec;
};

// inputs {sum[rows, hidden], stats[rows, 2], gamma, beta}; outputs {y[rows, hidden]}: a norm's
// output from what it keeps
class NormAgain final : public Op {
 public:
  std::string_view name() const override { return "norm_again"; }
  void run(const Call& call) const override;
};

class ResidualNorm final : public Op {
 public:
  explicit ResidualNorm(const ResidualNormSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "residual_norm"; }
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;
  std::optional<Remake> remake(const Node& node, size_t which) const override;

  const ResidualNormSpec spec;
};

class LayerNorm final : public Op {
 public:
  explicit LayerNorm(const LayerNormSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "layer_norm"; }
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;
  std::optional<Remake> remake(const Node& node, size_t which) const override;

  const LayerNormSpec spec;
};

}  // namespace snug
