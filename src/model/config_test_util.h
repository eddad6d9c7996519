// Configurations of small models for tests.
#pragma once

#include "model/config.h"

namespace snug {

struct TestSizes {
  int64_t words = 50, hidden = 8, layers = 2, heads = 2, inner = 16, positions = 32;
  size_t labels = 2;
};

// All else as the family has it.
inline ModelConfig test_config(Family family, const TestSizes& sizes) {
  ModelConfig config = default_config(family);
  config.vocab_size = sizes.words;
  config.hidden_size = sizes.hidden;
  config.num_hidden_layers = sizes.layers;
  config.num_attention_heads = sizes.heads;
  config.intermediate_size = sizes.inner;
  config.max_position_embeddings = sizes.positions;
  for (size_t i = 0; i < sizes.labels; ++i) config.labels.push_back(std::to_string(i));
  return config;
}

}  // namespace snug
