// Dropout on one row per sequence (a classifier's input), per token (an adapter's) or per target (a
// tagger's; its mask is that of the token). Backward draws the mask again.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct DropoutSpec {
  float p = 0.0f;
  uint32_t site = 0;  // names the mask
  Rows rows = Rows::kSequences;
};

// inputs {x[rows, hidden]}; outputs {y[rows, hidden]}
OpPtr dropout(const DropoutSpec& spec);

// The operators by name, for their kernels on other devices.

// Both directions: multiplies with the mask. inputs {x or dy}; outputs {y or dx}
class Dropout final : public Op {
 public:
  Dropout(const DropoutSpec& spec, bool add) : spec(spec), add(add) {}
  std::string_view name() const override { return "dropout"; }
  // An adapter's input is kept anyway.
  bool always_repeated() const override { return spec.rows == Rows::kTokens; }
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;

  const DropoutSpec spec;
  bool add;
};

}  // namespace snug
