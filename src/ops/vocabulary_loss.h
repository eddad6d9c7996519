// The head of a language model and its loss: softmax and cross-entropy of x · wᵀ + b over the whole
// vocabulary, chunk by chunk of target rows, so that no more than chunk x vocabulary logits ever
// exist. In training one pass computes loss and gradients while a chunk's logits are there; it
// stands where backward begins, and the forward node only marks the place.
#pragma once

#include <cstdint>

#include "graph/op.h"
#include "ops/distillation.h"

namespace snug {

struct VocabularyLossSpec {
  int64_t chunk = 1;            // target rows at once
  int64_t vocabulary = 0;       // where w has more rows, which round it up; 0: it has none
  bool with_gradient = false;   // training: see above
  Distillation distillation{};  // counts where there is a teacher
};

// inputs {x[targets, hidden], w[vocabulary or more, hidden], b[1, vocabulary] (optional)}, and in
// training optionally a teacher's {x[targets, its hidden], w[as many rows, its hidden], b
// (optional)}: the loss is then that of ops/distillation.h, and the teacher's logits too exist only
// by chunk outputs {loss[1, 1] fp64, += loss_scale * sum of -log p(target)}
OpPtr vocabulary_loss(const VocabularyLossSpec& spec);

// The operators by name, for their kernels on other devices.

// inputs {x, w, b (optional), the teacher's x, w, b (optional)}; outputs {loss (+=), dx (=,
// optional), dw (+=, optional), db (+=, optional)}
class VocabularyLossGradient final : public Op {
 public:
  explicit VocabularyLossGradient(int64_t chunk, int64_t vocabulary = 0,
                                  const Distillation& distillation = {})
      : chunk(chunk), vocabulary(vocabulary), distillation(distillation) {}
  std::string_view name() const override { return "vocabulary_loss_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const int64_t chunk, vocabulary;
  const Distillation distillation;
};

class VocabularyLoss final : public Op {
 public:
  explicit VocabularyLoss(const VocabularyLossSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "vocabulary_loss"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;

  const VocabularyLossSpec spec;
};

}  // namespace snug
