// A model family as snug sees it: a table of parameters and a builder of step graphs. Everything else (loading, planning,
// training, saving) works on these two.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "model/parameters.h"

namespace snug {

struct BertConfig;

enum class Head { kNone, kClassifier };
enum class Pooling { kMean, kFirstToken };
enum class Purpose {
  kTraining,   // forward, loss and backward
  kScoring,    // forward to logits, and the loss where labels are given
  kEmbedding,  // forward to one vector per sequence
};

struct GraphOptions {
  Purpose purpose = Purpose::kTraining;
  int recomputed_layers = 0;  // the first so many layers: they wait longest for their backward
  Pooling pooling = Pooling::kMean;
  DType compute = DType::kF32;  // of activations and of the factors of products
};

struct StepGraph {
  Graph graph;
  ValueId loss = kNoValue;    // fp64 scalar: sum over the step's micro-batches
  ValueId result = kNoValue;  // logits [sequences, classes] or embeddings [sequences, hidden]
};

class Model {
 public:
  virtual ~Model() = default;
  const ParameterTable& parameters() const { return parameters_; }
  virtual StepGraph build(const GraphOptions& options) const = 0;
  virtual int layers() const = 0;
  virtual int64_t max_length() const = 0;           // positions the model has
  virtual int64_t largest_product_side() const = 0;  // of the weight matrices

 protected:
  ParameterTable parameters_;
};

std::unique_ptr<Model> make_bert(const BertConfig& config, Head head);

}  // namespace snug
