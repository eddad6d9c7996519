// The mean over each sequence's tokens, for sentence embeddings: x[tokens, hidden] -> y[sequences,
// hidden]. Forward only.
#pragma once

#include "graph/op.h"

namespace snug {

// inputs {x[tokens, hidden]}; outputs {y[sequences, hidden]}
OpPtr mean_pool();

// The operators by name, for their kernels on other devices.

class MeanPool final : public Op {
 public:
  std::string_view name() const override { return "mean_pool"; }
  void run(const Call& call) const override;
};

}  // namespace snug
