// Token embeddings: y = dropout(norm(word[id] + position[p] + type[t])). Nothing is kept but the
// norm's statistics: backward adds the table rows again. Gradients of the tables are scattered by
// threads that own columns, so no order is left to chance.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct EmbeddingSpec {
  int64_t hidden = 1;
  bool norm = true;  // false: y = dropout(sum), as in GPT-2
  float eps = 1e-12f;
  float dropout = 0.0f;
  uint32_t site = 0;            // names the dropout mask
  int64_t position_offset = 0;  // row of position 0 in its table: RoBERTa's begins at 2
  // The word row that gets no gradient, as PyTorch's padding_idx; -1: none.
  int64_t padding_id = -1;
};

// inputs {word[vocab, hidden], position[positions, hidden], type[types, hidden] (optional),
// gamma[1, hidden],
//         beta[1, hidden] (absent without norm), word_scales[1, vocab] (where word is int8, which
//         has no gradient)}
// outputs {y[tokens, hidden], stats[tokens, 2] (mean, 1 / deviation; absent without norm or
// gradient)}
OpPtr embedding(const EmbeddingSpec& spec);

// The operators by name, for their kernels on other devices.

// inputs {dy, stats, word, position, type, gamma, word_scales}
// outputs {dy in place, dword, dposition, dtype, dgamma, dbeta (all += and optional)}
class EmbeddingGradient final : public Op {
 public:
  explicit EmbeddingGradient(const EmbeddingSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "embedding_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const EmbeddingSpec spec;
};

class Embedding final : public Op {
 public:
  explicit Embedding(const EmbeddingSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "embedding"; }
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;

  const EmbeddingSpec spec;
};

}  // namespace snug
