// The tokens that predict something: x[tokens, hidden] -> y[targets, hidden], row i being token
// batch.target_rows[i]. Language models put their head on these alone: all tokens but the last of
// each text (causal), the masked ones, or in generation the last of each text.
#pragma once

#include "graph/op.h"

namespace snug {

// inputs {x[tokens, hidden]}; outputs {y[targets, hidden]}
OpPtr target_rows();

// The operators by name, for their kernels on other devices.

// inputs {dy}; outputs {dx: zero but for the target rows, or added to there}
class TargetRowsGradient final : public Op {
 public:
  explicit TargetRowsGradient(bool accumulate) : accumulate(accumulate) {}
  std::string_view name() const override { return "target_rows_gradient"; }
  void run(const Call& call) const override;

  const bool accumulate;
};

class TargetRows final : public Op {
 public:
  std::string_view name() const override { return "target_rows"; }
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;
};

}  // namespace snug
