// Self-attention over packed sequences. Scores exist only as a block of queries against the keys of
// one sequence, in the thread's workspace: memory is linear in tokens. Backward computes the
// probabilities again from the kept log-sum-exp, and the dropout mask from its counters.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct AttentionSpec {
  int64_t heads = 1;
  int64_t head_dim = 1;
  float dropout = 0.0f;
  uint32_t site = 0;  // names the dropout mask
  bool causal = false;
};

// inputs {qkv[tokens, 3 * heads * head_dim]}: q | k | v, each heads * head_dim
// outputs {o[tokens, heads * head_dim], lse[tokens, heads]}; lse may be absent where no gradient is
// wanted
OpPtr attention(const AttentionSpec& spec);

// The operators by name, for their kernels on other devices.

// inputs {qkv, o, lse, do}; outputs {dqkv (=), its sums over rows (optional, +=)}: those are the
// gradient of the bias that made qkv
class AttentionGradient final : public Op {
 public:
  explicit AttentionGradient(const AttentionSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "attention_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const AttentionSpec spec;
};

class Attention final : public Op {
 public:
  explicit Attention(const AttentionSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "attention"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;

  const AttentionSpec spec;
};

}  // namespace snug
