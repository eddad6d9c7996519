// Where in a sequence an answer begins and ends: a softmax over the sequence's tokens for its first
// token and one for its last, and the mean of the two cross-entropies. Loss and gradient come from
// one pass, as in ops/cross_entropy.h.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

// Columns of logits and words of a label: the first and the last token.
inline constexpr int64_t kSpanEnds = 2;

// inputs {logits[tokens, 2]}
// outputs {loss[1, 1] fp64, += loss_scale * sum over sequences of (-log p(first) - log p(last)) /
// 2, dlogits[tokens, 2] = loss_scale / 2 * (p - onehot)}. Either output may be absent. An end that
// is not known (-1) adds nothing, and its column of the sequence gets gradient zero.
OpPtr span_loss();

// The operators by name, for their kernels on other devices.

class SpanLoss final : public Op {
 public:
  std::string_view name() const override { return "span_loss"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;
};

}  // namespace snug
