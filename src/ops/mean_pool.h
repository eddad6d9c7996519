// The mean over each sequence's tokens, for sentence embeddings: x[tokens, hidden] -> y[sequences,
// hidden]. Forward only.
#pragma once

#include "graph/op.h"

namespace snug {

struct MeanPoolSpec {
  bool normalize = false;  // to Euclidean length 1; a zero mean stays zero
};

// inputs {x[tokens, hidden]}; outputs {y[sequences, hidden]}
OpPtr mean_pool(const MeanPoolSpec& spec);

// The operators by name, for their kernels on other devices.

class MeanPool final : public Op {
 public:
  explicit MeanPool(const MeanPoolSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "mean_pool"; }
  void run(const Call& call) const override;

  const MeanPoolSpec spec;
};

}  // namespace snug
