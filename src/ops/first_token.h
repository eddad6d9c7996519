// The first token of each sequence ([CLS]): x[tokens, hidden] -> y[sequences, hidden].
#pragma once

#include "graph/op.h"

namespace snug {

// inputs {x[tokens, hidden]}; outputs {y[sequences, hidden]}
OpPtr first_token();

// The operators by name, for their kernels on other devices.

// inputs {dy}; outputs {dx: zero but for the first tokens, or added to there}
class FirstTokenGradient final : public Op {
 public:
  explicit FirstTokenGradient(bool accumulate) : accumulate(accumulate) {}
  std::string_view name() const override { return "first_token_gradient"; }
  void run(const Call& call) const override;

  const bool accumulate;
};

class FirstToken final : public Op {
 public:
  std::string_view name() const override { return "first_token"; }
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;
};

}  // namespace snug
