// A model's parameters as one table: sizes, file names, initialisation, optimizer groups and
// checkpoint keys all derive from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/memory.h"

namespace snug {

enum class Init : uint8_t { kZeros, kOnes, kNormal, kUniform };  // kUniform: within 1 / sqrt(cols)

// Rows of a parameter as the files name them. Several parts make one fused tensor: BERT's query,
// key and value weights lie below each other so that one product computes all three.
struct ParameterPart {
  std::string name;  // Hugging Face's, with the model's prefix
  int64_t rows = 0;
};

// Where in a model a parameter stands.
enum class Stage : uint8_t { kEmbeddings, kLayer, kFinal };  // kFinal: behind the layers

struct Parameter {
  std::string name;  // ours, in messages and checkpoints
  int64_t rows = 1, cols = 1;
  bool is_vector = false;  // one-dimensional in files
  Init init = Init::kNormal;
  // Of the configuration's deviation: GPT-2 begins with small outputs of its branches.
  double init_scale = 1.0;
  bool decays = true;  // weight decay applies: not to biases and norms
  // A factor of products (and their biases): read in the type products compute in.
  bool is_factor = false;
  bool is_table = false;    // rows are looked up in fp32; with is_factor both are read
  int64_t padded_rows = 0;  // rows it occupies where more than it has: zeros that round a
                            // vocabulary for fast products
  // May be missing in a pre-trained file: then it is made new, and that is said.
  bool is_head = false;
  bool is_adapter = false;  // LoRA's: trained beside the weights, kept in files of their own
  bool trained = true;      // false: frozen
  Stage stage = Stage::kEmbeddings;
  int layer = -1;            // of kLayer
  bool is_in_out = false;    // of a layer's weight: stored as [inputs, channels]
  bool quantizable = false;  // a large matrix, which int8 is exact enough for
  bool quantized = false;    // it is int8 in memory
  std::vector<ParameterPart> parts;

  int64_t size() const { return rows * cols; }
  int64_t occupied_rows() const { return padded_rows > rows ? padded_rows : rows; }
  bool is_matrix() const { return is_factor && !is_vector && !is_table; }
  // Whether training keeps it as two halves, of which products read the upper one.
  bool splits(DType compute) const {
    return compute == DType::kBF16 && trained && is_matrix() && !quantized;
  }
  // Whether the update takes its gradient rounded to that type. Not that of a vocabulary's factor,
  // which is padded: it is added up from chunks of targets even where a step is one micro-batch.
  bool rounds_gradient(DType compute) const { return splits(compute) && padded_rows == 0; }
  int64_t occupied() const { return occupied_rows() * cols; }

  // As int8 it is [channels, inputs], and behind that, in fp32, a scale for each channel.
  int64_t channels() const { return is_in_out ? cols : occupied_rows(); }
  int64_t inputs() const { return is_in_out ? rows : cols; }
  size_t scales_offset() const { return align_up(size_t(channels() * inputs())); }
  size_t quantized_bytes() const { return scales_offset() + size_t(channels()) * sizeof(float); }
};

using ParameterTable = std::vector<Parameter>;

// How a family's files name tensors besides the table's own names.
struct WeightNames {
  std::string prefix;  // in front of the layers' names; files of a bare model lack it
  std::vector<std::string>
      own;  // a tensor with one of these in its name belongs to the layers: it must be known
  std::vector<std::string>
      not_weights;      // except with one of these in its name: buffers that versions have stored
  bool in_out = false;  // the layers' weights lie as [in, out]
};

inline int64_t parameter_count(const ParameterTable& table) {
  int64_t count = 0;
  for (const Parameter& p : table) count += p.size();
  return count;
}
inline int64_t trained_count(const ParameterTable& table) {
  int64_t count = 0;
  for (const Parameter& p : table) count += p.trained ? p.size() : 0;
  return count;
}

}  // namespace snug
