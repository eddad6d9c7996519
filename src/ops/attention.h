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

}  // namespace snug
