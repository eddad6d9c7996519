// A model's parameters as one table: sizes, file names, initialisation, optimizer groups and checkpoint keys all derive
// from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snug {

enum class Init : uint8_t { kZeros, kOnes, kNormal };

// Rows of a parameter as the files name them. Several parts make one fused tensor: BERT's query, key and value weights
// lie below each other so that one product computes all three.
struct ParameterPart {
  std::string name;  // Hugging Face's, with the model's prefix
  int64_t rows = 0;
};

struct Parameter {
  std::string name;  // ours, in messages and checkpoints
  int64_t rows = 1, cols = 1;
  bool is_vector = false;  // one-dimensional in files
  Init init = Init::kNormal;
  bool decays = true;    // weight decay applies: not to biases and norms
  bool is_factor = false;  // a factor of products (and their biases): read in the type products compute in
  bool is_head = false;    // may be missing in a pre-trained file: then it is made new, and that is said
  std::vector<ParameterPart> parts;

  int64_t size() const { return rows * cols; }
};

using ParameterTable = std::vector<Parameter>;

inline int64_t parameter_count(const ParameterTable& table) {
  int64_t count = 0;
  for (const Parameter& p : table) count += p.size();
  return count;
}

}  // namespace snug
