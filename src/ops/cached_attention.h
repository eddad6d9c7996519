// Causal attention of generation: the keys and values of a micro-batch's tokens go into the cache,
// then each token attends to everything its text has there up to itself. A whole prompt and one
// more token are the same to it. Forward only.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct CachedAttentionSpec {
  int64_t heads = 1;
  int64_t head_dim = 1;
  int64_t context = 1;  // rows of the cache a text has
};

// inputs {qkv[tokens, 3 * heads * head_dim]: q | k | v}
// outputs {o[tokens, heads * head_dim], cache[texts * context, 2 * heads * head_dim]: k | v, in
// place} The token at batch.positions[t] of text batch.samples[batch.row_of[t]] has row sample *
// context + position.
OpPtr cached_attention(const CachedAttentionSpec& spec);

// The operator by name, for its kernel on other devices.

class CachedAttention final : public Op {
 public:
  explicit CachedAttention(const CachedAttentionSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "cached_attention"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const CachedAttentionSpec spec;
};

}  // namespace snug
