// A model family as snug sees it: a table of parameters and a builder of step graphs. Everything
// else (loading, planning, training, saving) works on these two.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "model/config.h"
#include "model/parameters.h"
#include "model/tuning.h"
#include "ops/sample.h"

namespace snug {

enum class Pooling { kMean, kFirstToken };
enum class Purpose {
  kTraining,    // forward, loss and backward
  kScoring,     // forward to logits, and the loss where labels or targets are given
  kLogits,      // a language model's forward to the logits of every target
  kEmbedding,   // forward to one vector per sequence
  kGeneration,  // forward to the next token of each sequence, with a cache of keys and values
  kPrefix,      // forward of the first layers to what training goes on from; see
                // GraphOptions::kept_layers
};

// How the loss of one class for each text or token differs from the plain one; see
// ops/cross_entropy.h.
struct LossOptions {
  float label_smoothing = 0.0f;
  bool weighted = false;
};

struct GraphOptions {
  Purpose purpose = Purpose::kTraining;
  Recomputation recompute{};  // training
  Pooling pooling = Pooling::kMean;
  DType compute = DType::kF32;  // of activations and of the factors of products
  LossOptions loss{};           // training and scoring
  int64_t head_chunk = 1024;    // target rows of a vocabulary's head whose logits exist at once
  // Factors are converted to the compute type when used, instead of kept as copies.
  bool converts_weights = false;
  bool bf16_weights = false;  // trained matrices exist in bf16 alone
  // Parameters' gradients are fetched and stored by segment, see ops/gradient_traffic.h.
  bool gradients_outside = false;
  bool only_pass = false;  // a step never has more than one micro-batch: these may be rounded
  // What recomputed layers keep is stowed and fetched, see ops/activation_traffic.h.
  bool activations_outside = false;
  // Training begins behind so many frozen layers, with what kPrefix made of the micro-batch's texts
  // at some time before.
  int kept_layers = 0;
  int64_t context = 0;  // generation: tokens a text can grow to
  SampleSpec sample{};  // generation
};

struct StepGraph {
  Graph graph;
  ValueId given = kNoValue;  // training behind kept layers: their output, see kept_states()
  ValueId loss = kNoValue;   // fp64 scalar: sum over the step's micro-batches
  // Logits [sequences, labels], a tagger's [targets, labels], [tokens, 2] of the ends of answers,
  // [targets, vocabulary]; embeddings [sequences, hidden]; or ops/sample.h's next tokens; or
  // kept_states(). Absent where only the loss counts.
  ValueId result = kNoValue;
};

class Model {
 public:
  virtual ~Model() = default;
  const ParameterTable& parameters() const { return parameters_; }
  const WeightNames& weight_names() const { return weight_names_; }
  virtual StepGraph build(const GraphOptions& options) const = 0;
  virtual const ModelConfig& config() const = 0;
  virtual int layers() const = 0;
  virtual int64_t max_length() const = 0;            // tokens a text may have
  virtual int64_t largest_product_side() const = 0;  // of the weight matrices
  virtual Head head() const = 0;
  virtual const Tuning& tuning() const = 0;
  // Where it learns from a teacher (model/distilled.h): the two models whose weights come from and
  // go to files.
  virtual const Model& student() const { return *this; }
  virtual const Model* teacher() const { return nullptr; }

 protected:
  ParameterTable parameters_;
  WeightNames weight_names_;
};

// Errors are kInput and kUsage: a head that the family does not have, names that the model does not
// have.
std::unique_ptr<Model> make_model(const ModelConfig& config, Head head, const Tuning& tuning = {});

// Layers that are frozen, counted from the first, where nothing before them is trained either.
int frozen_layers(const Model& model);

// What is kept of the output of the first layers: all tokens; or where it goes into a classifier,
// which looks at one token of a text, one row for each text.
TensorDesc kept_states(const Model& model, const GraphOptions& options);

// Words of a sequence's label in Batch::labels that the loss reads.
int64_t label_words(const ModelConfig& config, Head head, const LossOptions& loss = {});

}  // namespace snug
