// BERT (Devlin et al. 2018) as Hugging Face stores it: post-norm encoder layers, and for classification the pooler, a
// dropout and one linear layer over the first token. Query, key and value weights are one fused parameter each layer.
#include <fmt/format.h>

#include "graph/backward.h"
#include "model/config.h"
#include "model/model.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/first_token.h"
#include "ops/fusion.h"
#include "ops/linear.h"
#include "ops/mean_pool.h"
#include "ops/residual_norm.h"

namespace snug {
namespace {

constexpr const char* kPrefix = "bert.";

// Indices into the parameter table.
struct LinearSlots {
  int weight, bias;
};
struct NormSlots {
  int gamma, beta;
};
struct LayerSlots {
  LinearSlots qkv, attention_out, ffn_in, ffn_out;
  NormSlots attention_norm, ffn_norm;
};

// Dropout sites: every mask in the model has its own number, so adding a layer changes no other layer's masks.
uint32_t layer_site(int layer, int which) { return uint32_t(1 + 3 * layer + which); }

class Bert final : public Model {
 public:
  Bert(const BertConfig& config, Head head);
  StepGraph build(const GraphOptions& options) const override;
  int layers() const override { return int(config_.num_hidden_layers); }
  int64_t max_length() const override { return config_.max_position_embeddings; }
  int64_t largest_product_side() const override {
    return std::max(3 * config_.hidden_size, config_.intermediate_size);
  }

 private:
  class Builder;

  int add_table(const std::string& name, int64_t rows);
  LinearSlots add_linear(const std::string& name, int64_t out, int64_t in, bool is_head = false);
  LinearSlots add_qkv(const std::string& prefix);
  NormSlots add_norm(const std::string& name);
  void add_head();

  BertConfig config_;
  Head head_;
  int word_, position_, type_;
  NormSlots embedding_norm_;
  std::vector<LayerSlots> layers_;
  LinearSlots pooler_{}, classifier_{};
};

Bert::Bert(const BertConfig& config, Head head) : config_(config), head_(head) {
  const int64_t hidden = config.hidden_size;
  word_ = add_table("embeddings.word_embeddings.weight", config.vocab_size);
  position_ = add_table("embeddings.position_embeddings.weight", config.max_position_embeddings);
  type_ = add_table("embeddings.token_type_embeddings.weight", config.type_vocab_size);
  embedding_norm_ = add_norm("embeddings.LayerNorm");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("encoder.layer.{}.", i);
    LayerSlots slots;
    slots.qkv = add_qkv(layer + "attention.self.");
    slots.attention_out = add_linear(layer + "attention.output.dense", hidden, hidden);
    slots.attention_norm = add_norm(layer + "attention.output.LayerNorm");
    slots.ffn_in = add_linear(layer + "intermediate.dense", config.intermediate_size, hidden);
    slots.ffn_out = add_linear(layer + "output.dense", hidden, config.intermediate_size);
    slots.ffn_norm = add_norm(layer + "output.LayerNorm");
    layers_.push_back(slots);
  }
  if (head == Head::kClassifier) add_head();
}

int Bert::add_table(const std::string& name, int64_t rows) {
  parameters_.push_back({.name = name, .rows = rows, .cols = config_.hidden_size, .parts = {{kPrefix + name, rows}}});
  return int(parameters_.size()) - 1;
}

LinearSlots Bert::add_linear(const std::string& name, int64_t out, int64_t in, bool is_head) {
  const std::string file_name = name == "classifier" ? name : kPrefix + name;
  parameters_.push_back({.name = name + ".weight", .rows = out, .cols = in, .is_factor = true, .is_head = is_head,
                         .parts = {{file_name + ".weight", out}}});
  parameters_.push_back({.name = name + ".bias", .cols = out, .is_vector = true, .init = Init::kZeros, .decays = false,
                         .is_factor = true, .is_head = is_head, .parts = {{file_name + ".bias", out}}});
  return {int(parameters_.size()) - 2, int(parameters_.size()) - 1};
}

LinearSlots Bert::add_qkv(const std::string& prefix) {
  const int64_t hidden = config_.hidden_size;
  Parameter weight{.name = prefix + "qkv.weight", .rows = 3 * hidden, .cols = hidden, .is_factor = true, .parts = {}};
  Parameter bias{.name = prefix + "qkv.bias", .cols = 3 * hidden, .is_vector = true, .init = Init::kZeros,
                 .decays = false, .is_factor = true, .parts = {}};
  for (const char* part : {"query", "key", "value"}) {
    weight.parts.push_back({kPrefix + prefix + part + ".weight", hidden});
    bias.parts.push_back({kPrefix + prefix + part + ".bias", hidden});
  }
  parameters_.push_back(std::move(weight));
  parameters_.push_back(std::move(bias));
  return {int(parameters_.size()) - 2, int(parameters_.size()) - 1};
}

NormSlots Bert::add_norm(const std::string& name) {
  for (const bool gamma : {true, false}) {
    const std::string full = name + (gamma ? ".weight" : ".bias");
    parameters_.push_back({.name = full, .cols = config_.hidden_size, .is_vector = true,
                           .init = gamma ? Init::kOnes : Init::kZeros, .decays = false,
                           .parts = {{kPrefix + full, config_.hidden_size}}});
  }
  return {int(parameters_.size()) - 2, int(parameters_.size()) - 1};
}

void Bert::add_head() {
  pooler_ = add_linear("pooler.dense", config_.hidden_size, config_.hidden_size, /*is_head=*/true);
  classifier_ = add_linear("classifier", int64_t(config_.labels.size()), config_.hidden_size, /*is_head=*/true);
}

Activation activation_of(HiddenAct act) {
  switch (act) {
    case HiddenAct::kGelu: return Activation::kGelu;
    case HiddenAct::kGeluTanh: return Activation::kGeluTanh;
    case HiddenAct::kRelu: return Activation::kRelu;
  }
  return Activation::kGelu;
}

// Writes one step graph.
class Bert::Builder {
 public:
  Builder(const Bert& bert, const GraphOptions& options)
      : bert_(bert), config_(bert.config_), options_(options), training_(options.purpose == Purpose::kTraining) {
    for (size_t i = 0; i < bert.parameters_.size(); ++i) {
      const Parameter& p = bert.parameters_[i];
      parameters_.push_back(graph_.add_parameter(p.name, {.dtype = p.is_factor ? options.compute : DType::kF32, .rows = p.rows, .cols = p.cols},
                                                 int(i), training_));
    }
  }

  StepGraph build() {
    ValueId x = embeddings();
    for (int i = 0; i < bert_.layers(); ++i) x = layer(i, x);
    graph_.begin_segment("head");
    StepGraph result;
    if (options_.purpose == Purpose::kEmbedding) {
      result.result = pool(x);
    } else {
      result.result = logits(x);
      result.loss = loss(result.result);
    }
    graph_.keep(result.result);
    if (training_) {
      append_backward(graph_, recomputed_segments());
      fuse_bias_gradients(graph_);
    }
    result.graph = std::move(graph_);
    return result;
  }

 private:
  ValueId tokens(const std::string& name, int64_t cols) {
    return graph_.add_value(name, {.dtype = options_.compute, .rows_are = Rows::kTokens, .cols = cols});
  }
  // Kept for backward alone.
  ValueId saved(const std::string& name, int64_t cols) { return training_ ? tokens(name, cols) : kNoValue; }
  ValueId saved_statistics(const std::string& name, int64_t cols) {
    return training_ ? graph_.add_value(name, {.rows_are = Rows::kTokens, .cols = cols}) : kNoValue;
  }
  ValueId sequences(const std::string& name, int64_t cols) {
    return graph_.add_value(name, {.dtype = options_.compute, .rows_are = Rows::kSequences, .cols = cols});
  }
  ValueId parameter(int slot) const { return parameters_[size_t(slot)]; }
  float hidden_dropout() const { return float(config_.hidden_dropout); }

  void linear_node(const LinearSlots& slots, Activation activation, ValueId x, std::vector<ValueId> outputs) {
    graph_.add_node(linear({.activation = activation}), {x, parameter(slots.weight), parameter(slots.bias)},
                    std::move(outputs));
  }

  ValueId embeddings() {
    graph_.begin_segment("embeddings");
    const ValueId y = tokens("embeddings", config_.hidden_size), stats = saved_statistics("embeddings.stats", 2);
    graph_.add_node(embedding({.hidden = config_.hidden_size, .eps = float(config_.layer_norm_eps),
                               .dropout = hidden_dropout(), .site = 0, .padding_id = config_.pad_token_id}),
                    {parameter(bert_.word_), parameter(bert_.position_), parameter(bert_.type_),
                     parameter(bert_.embedding_norm_.gamma), parameter(bert_.embedding_norm_.beta)},
                    {y, stats});
    return y;
  }

  ValueId norm_node(const std::string& name, const NormSlots& slots, uint32_t site, ValueId x, ValueId residual) {
    const ValueId y = tokens(name, config_.hidden_size), sum = saved(name + ".sum", config_.hidden_size);
    const ValueId stats = saved_statistics(name + ".stats", 2);
    graph_.add_node(residual_norm({.hidden = config_.hidden_size, .eps = float(config_.layer_norm_eps),
                                   .dropout = hidden_dropout(), .site = site}),
                    {x, residual, parameter(slots.gamma), parameter(slots.beta)}, {y, sum, stats});
    return y;
  }

  ValueId layer(int i, ValueId x) {
    const LayerSlots& slots = bert_.layers_[size_t(i)];
    const std::string name = fmt::format("layer.{}", i);
    graph_.begin_segment(name);
    const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads;

    const ValueId qkv = tokens(name + ".qkv", 3 * hidden);
    linear_node(slots.qkv, Activation::kNone, x, {qkv});
    const ValueId context = tokens(name + ".context", hidden), lse = saved_statistics(name + ".lse", heads);
    graph_.add_node(attention({.heads = heads, .head_dim = hidden / heads, .dropout = float(config_.attention_dropout),
                               .site = layer_site(i, 0), .causal = false}),
                    {qkv}, {context, lse});
    const ValueId attended = tokens(name + ".attended", hidden);
    linear_node(slots.attention_out, Activation::kNone, context, {attended});
    const ValueId middle = norm_node(name + ".attention_norm", slots.attention_norm, layer_site(i, 1), attended, x);

    const ValueId inner = tokens(name + ".inner", config_.intermediate_size);
    const ValueId pre = saved(name + ".pre", config_.intermediate_size);
    linear_node(slots.ffn_in, activation_of(config_.hidden_act), middle, {inner, pre});
    const ValueId out = tokens(name + ".ffn", hidden);
    linear_node(slots.ffn_out, Activation::kNone, inner, {out});
    return norm_node(name + ".ffn_norm", slots.ffn_norm, layer_site(i, 2), out, middle);
  }

  ValueId pool(ValueId x) {
    const ValueId pooled = sequences("pooled", config_.hidden_size);
    if (options_.pooling == Pooling::kMean) {
      graph_.add_node(mean_pool({}), {x}, {pooled});
    } else {
      graph_.add_node(first_token(), {x}, {pooled});
    }
    return pooled;
  }

  ValueId logits(ValueId x) {
    const ValueId first = sequences("first", config_.hidden_size);
    graph_.add_node(first_token(), {x}, {first});
    const ValueId pooled = sequences("pooled", config_.hidden_size);
    linear_node(bert_.pooler_, Activation::kTanh, first, {pooled});
    const ValueId dropped = sequences("dropped", config_.hidden_size);
    const double rate = config_.classifier_dropout.value_or(config_.hidden_dropout);
    graph_.add_node(dropout({.p = float(rate), .site = layer_site(bert_.layers(), 0)}), {pooled}, {dropped});
    const ValueId logits = sequences("logits", int64_t(config_.labels.size()));
    linear_node(bert_.classifier_, Activation::kNone, dropped, {logits});
    return logits;
  }

  ValueId loss(ValueId logits) {
    const ValueId loss = graph_.add_scalar("loss", DType::kF64);
    ValueId gradient = kNoValue;
    if (training_) {
      gradient = sequences("d(logits)", int64_t(config_.labels.size()));
      graph_.seed_gradient(logits, gradient);
    }
    graph_.add_node(cross_entropy({.classes = int64_t(config_.labels.size())}), {logits}, {loss, gradient});
    return loss;
  }

  std::vector<bool> recomputed_segments() const {
    std::vector<bool> segments(size_t(bert_.layers()) + 2, false);  // embeddings, layers, head
    for (int i = 0; i < options_.recomputed_layers; ++i) segments[size_t(i) + 1] = true;
    return segments;
  }

  const Bert& bert_;
  const BertConfig& config_;
  const GraphOptions& options_;
  bool training_;
  Graph graph_;
  std::vector<ValueId> parameters_;
};

StepGraph Bert::build(const GraphOptions& options) const { return Builder(*this, options).build(); }

}  // namespace

std::unique_ptr<Model> make_bert(const BertConfig& config, Head head) { return std::make_unique<Bert>(config, head); }

}  // namespace snug
