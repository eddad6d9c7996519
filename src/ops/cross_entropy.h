// Softmax and cross-entropy of one label for each sequence, or for each token that predicts. Loss
// and gradient come from one pass, so a training graph asks for both at once and seeds the gradient
// of logits with dlogits; there is nothing left to emit for backward.
#pragma once

#include <cstdint>

#include "graph/op.h"
#include "ops/distillation.h"

namespace snug {

struct CrossEntropySpec {
  int64_t classes = 1;
  Distillation distillation{};   // counts where there is a teacher
  Rows rows = Rows::kSequences;  // or kTargets: labels are batch.target_ids
  // So much of the target is spread evenly over all classes (Szegedy et al. 2015), as Hugging
  // Face's LabelSmoother has it: the loss is (1 - smoothing) * -log p(label) + smoothing * the mean
  // of -log p.
  float smoothing = 0.0f;
  // The loss counts with a weight, the bits of a float. Of sequences it is a second word of the
  // label. Of targets it is that of their class: behind its first word, the label of every sequence
  // has the weights of all classes.
  bool weighted = false;

  constexpr int64_t label_words() const {
    return !weighted ? 1 : rows == Rows::kTargets ? 1 + classes : 2;
  }
};

// inputs {logits[rows, classes], teacher's logits (the same shape, optional)}
// outputs {loss[1, 1] fp64, += loss_scale * sum of -log p(label), dlogits[rows, classes] =
// loss_scale * (p - onehot)} Either output may be absent; with a teacher they are those of
// ops/distillation.h. Rows without a label (-1) add nothing and get gradient zero.
OpPtr cross_entropy(const CrossEntropySpec& spec);

// The operators by name, for their kernels on other devices.

class CrossEntropy final : public Op {
 public:
  explicit CrossEntropy(const CrossEntropySpec& spec) : spec(spec) {}
  std::string_view name() const override { return "cross_entropy"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const CrossEntropySpec spec;
};

}  // namespace snug
