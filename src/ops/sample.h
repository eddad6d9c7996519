// The next token of each text, drawn from its logits. In the order of transformers: repetition
// penalty, temperature, top-k, top-p. Draws are counted by (seed, number of the text, position), so
// they do not know how texts were batched.
//
// What top-k and top-p keep is everything whose logit is not below a threshold: the k-th largest
// logit, and the largest value above which lie at least p of the probability that top-k left. Equal
// logits are therefore kept or dropped together.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct SampleSpec {
  float temperature = 0.0f;  // 0: the most likely token, the first of equals
  int64_t top_k = 0;         // 0: all
  float top_p = 1.0f;        // 1: all
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  int64_t vocabulary = 0;  // where logits have more columns, which mean nothing; 0: they have none
};

// inputs {logits[targets, vocabulary or more]}
// outputs {next[targets, 2] fp32: the token's id (exact below 2^24) and the logarithm of its
// probability among what was
//          kept; seen[texts, vocabulary] u8, in place, absent without a repetition penalty: 1 where
//          the text of batch.samples has held the token; tokens of this micro-batch are added
//          before use, and a text whose position 0 is among them begins anew}
// Row i belongs to the text of token batch.target_rows[i], whose number is in batch.labels, and is
// drawn for the position behind that token.
OpPtr sample(const SampleSpec& spec);

// The operator by name, for its kernel on other devices.

class Sample final : public Op {
 public:
  explicit Sample(const SampleSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "sample"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const SampleSpec spec;
};

// The uniform number in [0, 1) that decides the token at `position` of text number `text`.
float sample_draw(uint64_t seed, uint64_t text, uint32_t position);

}  // namespace snug
