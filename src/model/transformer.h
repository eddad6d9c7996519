// What the families share: adding parameters to a model's table and nodes to its graph. A family
// says in one file which parameters there are and how its layers are put together.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "model/model.h"
#include "ops/distillation.h"
#include "ops/end_token.h"
#include "ops/linear.h"

namespace snug {

// Indices into the parameter table.
struct AdapterSlots {
  int down = -1, up = -1;  // [rank, in], [count, rank]
  int64_t first_column = 0;
};
struct LinearSlots {
  int weight = -1, bias = -1;
  WeightLayout layout = WeightLayout::kOutIn;
  std::vector<AdapterSlots> adapters = {};
};
struct NormSlots {
  int gamma = -1, beta = -1;
};

// A dropout mask: what names it, and how much it drops.
struct DropoutPlace {
  uint32_t site = 0;
  double rate = 0;
};

// Where a forward pass ends.
struct Forward {
  // The logits; the rows that meet a language model's vocabulary; or all tokens.
  ValueId x = kNoValue;
  int weight = -1, bias = -1;  // slots of the vocabulary's head; bias -1: none
};

class GraphWriter;

class Transformer : public Model {
 public:
  Transformer(const ModelConfig& config, Head head, const Tuning& tuning, WeightNames names);
  StepGraph build(const GraphOptions& options) const override;
  // The layers and what comes before the loss.
  virtual Forward forward(GraphWriter& writer) const = 0;
  // The loss, or whatever else the graph is for, behind the forward pass.
  StepGraph complete(GraphWriter& writer) const;
  int layers() const override { return int(config_.num_hidden_layers); }
  int64_t max_length() const override { return config_.max_length(); }
  int64_t largest_product_side() const override;
  Head head() const override { return head_; }
  const ModelConfig& config() const override { return config_; }
  const Tuning& tuning() const override { return tuning_; }

 protected:
  bool is_language_model() const { return head_ == Head::kCausalLm || head_ == Head::kMaskedLm; }
  bool has_token_head() const { return head_ == Head::kTagger || head_ == Head::kSpans; }

  // Later parameters stand there.
  void begin(Stage stage, int layer = -1);

  // Names are ours; in files the prefix stands before them, but for heads (is_head), whose names
  // are whole.
  struct LinearShape {
    int64_t out = 0, in = 0;
    WeightLayout layout = WeightLayout::kOutIn;
    bool is_head = false;
    double init_scale = 1.0;
    bool has_bias = true;
  };
  int add_table(const std::string& name, int64_t rows);
  // is_factor: the head of a language model too.
  int add_words(const std::string& name, bool is_factor);
  LinearSlots add_linear(const std::string& name, const LinearShape& shape);
  // One product for several layers of the files, whose rows lie below each other.
  LinearSlots add_joined_linear(const std::string& name, const std::vector<std::string>& parts,
                                const LinearShape& each);
  // The head of a tagger or of the ends of answers: one layer over tokens, which all families name
  // alike.
  LinearSlots add_token_head();
  NormSlots add_norm(const std::string& name, bool is_head = false);
  int add_vector(const std::string& name, int64_t size, Init init, bool is_factor, bool is_head);
  int add(Parameter parameter);
  // After the last parameter: freezes what is to be frozen, and refuses adapters that found no
  // layer.
  void finish_table();

  ModelConfig config_;
  Head head_;
  Tuning tuning_;

 private:
  AdapterSlots add_adapter(const std::string& module, int64_t in, int64_t out,
                           int64_t first_column);

  Stage stage_ = Stage::kEmbeddings;
  int layer_ = -1;
  std::set<std::string> linear_names_, adapted_names_;  // last parts of modules' names
};

// A vocabulary's rows where it is a factor of products.
constexpr int64_t padded_vocabulary(int64_t size) { return (size + 63) / 64 * 64; }

// Dropout sites: every mask in a model has its own number, so adding a layer changes no other
// layer's masks. Site 0 is the embeddings'.
constexpr uint32_t dropout_site(int layer, int which) { return uint32_t(1 + 3 * layer + which); }
// Of adapters, by the place of their first parameter in the table.
constexpr uint32_t adapter_site(int slot) { return (1u << 20) + uint32_t(slot); }

Activation activation_of(HiddenAct act);

// What a student learns from: the end of its teacher's forward pass in the same graph. Its head is
// written where the loss is, so that what has to be made of its weights is not there before.
struct Teaching {
  Distillation distillation;
  Forward forward;
  GraphWriter* writer = nullptr;  // the teacher's
};

// Writes a model into a step graph.
class GraphWriter {
 public:
  // Where the model's parameters begin in the table that the graph is for, and what its names begin
  // with.
  struct Place {
    int first_slot = 0;
    std::string prefix;
  };
  GraphWriter(const Transformer& model, const GraphOptions& options, Graph& graph,
              Place place = {0, ""});

  Graph& graph() { return graph_; }
  bool training() const { return training_; }
  const ModelConfig& config() const { return model_.config(); }
  const GraphOptions& options() const { return options_; }
  // The layers that are in the graph: all of them but where their output is kept.
  int first_layer() const { return training_ ? options_.kept_layers : 0; }
  int end_layer() const { return is_prefix() ? options_.kept_layers : model_.layers(); }
  bool is_prefix() const { return options_.purpose == Purpose::kPrefix; }
  // What the first layer in the graph goes on from, where it is not the model's first.
  ValueId given_states();
  bool keeps_one_row() const { return kept_states(model_, options_).rows_are == Rows::kSequences; }

  void begin_segment(const std::string& name) { graph_.begin_segment(place_.prefix + name); }
  ValueId value(const std::string& name, Rows rows, int64_t cols) {
    return graph_.add_value(place_.prefix + name,
                            {.dtype = options_.compute, .rows_are = rows, .cols = cols});
  }
  ValueId tokens(const std::string& name, int64_t cols) { return value(name, Rows::kTokens, cols); }
  // Kept for backward alone.
  ValueId saved(const std::string& name, Rows rows, int64_t cols) {
    return training_ ? value(name, rows, cols) : kNoValue;
  }
  ValueId statistics(const std::string& name, Rows rows, int64_t cols) {
    return training_ ? graph_.add_value(place_.prefix + name, {.rows_are = rows, .cols = cols})
                     : kNoValue;
  }
  ValueId parameter(int slot);                  // in fp32
  ValueId factor(int slot);                     // in the type of products
  DType stored_type(const Parameter& p) const;  // that a factor is made from

  // y = activation(x w + b), a row for each row of x; y is called `name`.
  ValueId linear(const std::string& name, const LinearSlots& slots, Activation activation,
                 ValueId x);
  // A matrix that may be int8: then it has scales.
  struct Matrix {
    ValueId values, scales = kNoValue;
  };
  Matrix words(int slot);
  struct Normed {
    ValueId y, sum;
  };
  // sum = residual + dropout(x), y = norm(sum). Pre-norm models go on with the sum.
  Normed residual_norm(const std::string& name, const NormSlots& slots, const DropoutPlace& dropped,
                       ValueId x, ValueId residual, bool sum_goes_on);
  ValueId layer_norm(const std::string& name, const NormSlots& slots, ValueId x);
  // Self-attention over q | k | v; with a cache in generation.
  ValueId attention(const std::string& name, uint32_t site, ValueId qkv, bool causal);
  // The last layer of a classifier, which looks at one token of each text: behind attention there
  // is that row alone.
  bool sees_one_row(int layer) const;
  // What such a layer goes on with: the states of these tokens, and what they get by attention.
  struct EndRows {
    ValueId states, context;
  };
  // `residual` is what the layer's output is added to; x, which `qkv` is applied to, may be the
  // same or its norm.
  EndRows end_rows(const std::string& name, uint32_t site, const LinearSlots& qkv, End end,
                   ValueId residual, ValueId x);
  ValueId pool(ValueId x);
  // The first or last token of each sequence, called `name`. Rows that are these already stay what
  // they are.
  ValueId end_token(const std::string& name, End end, ValueId x);
  ValueId dropout(const std::string& name, double rate, uint32_t site, ValueId x);
  ValueId target_rows(ValueId x);
  // What add_token_head() gives: a tagger looks at the tokens that have a class alone.
  ValueId token_logits(const LinearSlots& slots, double dropout_rate, uint32_t site, ValueId x);

  // The loss will be that of ops/distillation.h.
  void learn_from(const Teaching& teaching) { teaching_ = teaching; }

  // The ends of a graph.
  StepGraph embedding(ValueId x);
  StepGraph prefix(ValueId states) { return finish(kNoValue, states); }
  StepGraph scores(ValueId logits);
  // The head over the vocabulary: the loss, logits, or in generation the next tokens.
  StepGraph language(const Forward& forward);

 private:
  ValueId add_parameter(int slot, const TensorDesc& desc);
  ValueId adapter_input(const AdapterSlots& slots, ValueId x);
  OpPtr loss_of(int64_t outputs) const;  // of all heads but a vocabulary's
  Matrix quantized(int slot);
  ValueId dequantized(int slot);
  StepGraph finish(ValueId loss, ValueId result);

  const Transformer& model_;
  const GraphOptions& options_;
  bool training_;
  Graph& graph_;
  Place place_;
  size_t first_segment_;
  std::optional<Teaching> teaching_;
  ValueId given_ = kNoValue;
  std::map<std::pair<int, DType>, ValueId> parameters_;
  std::map<std::pair<int, size_t>, ValueId> converted_;  // by slot and segment
  std::map<int, Matrix> quantized_;
};

// The families.
std::unique_ptr<Transformer> make_encoder(const ModelConfig& config, Head head,
                                          const Tuning& tuning);  // BERT, RoBERTa, DistilBERT
std::unique_ptr<Transformer> make_gpt2(const ModelConfig& config, Head head, const Tuning& tuning);
std::unique_ptr<Transformer> make_transformer(const ModelConfig& config, Head head,
                                              const Tuning& tuning);

}  // namespace snug
