// Softmax and cross-entropy of one label per sequence. Loss and gradient come from one pass, so a
// training graph asks for both at once and seeds the gradient of logits with dlogits; there is
// nothing left to emit for backward.
#pragma once

#include <cstdint>

#include "graph/op.h"
#include "ops/distillation.h"

namespace snug {

struct CrossEntropySpec {
  int64_t classes = 1;
  Distillation distillation{};  // counts where there is a teacher
};

// inputs {logits[sequences, classes], teacher's logits (the same shape, optional)}
// outputs {loss[1, 1] fp64, += loss_scale * sum of -log p(label), dlogits[sequences, classes] =
// loss_scale * (p - onehot)} Either output may be absent; with a teacher they are those of
// ops/distillation.h. Sequences without a label (-1) add nothing and get gradient zero.
OpPtr cross_entropy(const CrossEntropySpec& spec);

// The operators by name, for their kernels on other devices.

class CrossEntropy final : public Op {
 public:
  explicit CrossEntropy(const CrossEntropySpec& spec) : spec(spec) {}
  std::string_view name() const override { return "cross_entropy"; }
  void run(const Call& call) const override;

  const CrossEntropySpec spec;
};

}  // namespace snug
