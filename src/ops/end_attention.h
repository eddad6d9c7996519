// Self-attention where the first token of each sequence asks alone, because nobody looks at what
// the others would get. No token is multiplied with a weight then. A score q · (Wk x + bk) is (Wkᵀ
// q) · x but for q · bk, which all scores of a query share and softmax does not see; and the sum of
// values Wv x + bv is Wv times the sum of tokens, and bv times that of probabilities.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct EndAttentionSpec {
  int64_t heads = 1;
  int64_t head_dim = 1;
  float dropout = 0.0f;
  uint32_t site = 0;  // names the dropout mask: the first row of attention's

  int64_t hidden() const { return heads * head_dim; }
};

// inputs {x[tokens, hidden], ends[sequences, hidden], w[3 * hidden, hidden], b[1, 3 * hidden]}: all
// tokens, those that ask, and the layer that makes q | k | v outputs {o[sequences, hidden],
// q[sequences, hidden], p[tokens, heads], means[sequences, heads * hidden], kept[sequences,
// heads]}: behind o what backward reads: queries, probabilities before dropout, sums of tokens by
// probabilities, and sums of those
OpPtr end_attention(const EndAttentionSpec& spec);

// Its workspace, as offsets from the beginning.
struct EndAttentionWorkspace {
  size_t queries = 0;  // [sequences, heads, hidden] fp32: Wkᵀ q
  size_t kept = 0;     // [tokens, heads] fp32: probabilities behind dropout
  // Of backward:
  size_t d_means = 0;    // [sequences, heads, hidden] fp32: gradients of the means
  size_t d_queries = 0;  // [sequences, heads, hidden] fp32: those of Wkᵀ q
  size_t d_scores = 0;   // [tokens, heads] fp32
  size_t dq = 0;         // [sequences, hidden]
  size_t products = 0;   // of the device's library
  size_t bytes = 0;

  EndAttentionWorkspace(const EndAttentionSpec& spec, const Dims& dims, const Device& device,
                        bool backward);
};

// The operators by name, for their kernels on other devices.

// inputs {x, ends, w, b, q, p, means, kept, do}
// outputs {dx (= or +=), dends (= or +=), dw (+=), db (+=)}, each optional
class EndAttentionGradient final : public Op {
 public:
  EndAttentionGradient(const EndAttentionSpec& spec, bool add_x, bool add_ends)
      : spec(spec), add_x(add_x), add_ends(add_ends) {}
  std::string_view name() const override { return "end_attention_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const EndAttentionSpec spec;
  const bool add_x, add_ends;
};

class EndAttention final : public Op {
 public:
  explicit EndAttention(const EndAttentionSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "end_attention"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;

  const EndAttentionSpec spec;
};

}  // namespace snug
