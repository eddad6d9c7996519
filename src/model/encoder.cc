// BERT (Devlin et al. 2018), RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019) as Hugging
// Face stores them: post-norm encoder layers. They differ in names, in where positions begin, in
// token types and in their heads, all of which stands in one table. Query, key and value weights
// are one fused parameter each layer.
#include <fmt/format.h>

#include "core/error.h"
#include "model/transformer.h"
#include "ops/embedding.h"

namespace snug {
namespace {

// What a family's files call the parts, and how it differs from the others. Names of layers stand
// behind the layer's own.
struct Kind {
  const char* layer;
  const char *query, *key, *value, *attention_out, *attention_norm, *ffn_in, *ffn_out, *ffn_norm;
  const char *dense, *classifier;  // of the classifier
  Activation dense_activation;
  const char *transform, *transform_norm, *vocabulary_bias;  // of the masked language model's head
  bool positions_behind_padding = false;  // the first position is the row behind the padding id's
  bool drops_attended = true;             // dropout between attention and the sum
  bool drops_first_token = false;         // dropout before the classifier's first layer too
  bool drops_tags_as_layers = false;      // a tagger has the layers' rate, not the classifier's
  bool transforms_by_gelu = false;  // in the masked language model's head, whatever the layers do
};

constexpr Kind kBert = {.layer = "encoder.layer",
                        .query = "attention.self.query",
                        .key = "attention.self.key",
                        .value = "attention.self.value",
                        .attention_out = "attention.output.dense",
                        .attention_norm = "attention.output.LayerNorm",
                        .ffn_in = "intermediate.dense",
                        .ffn_out = "output.dense",
                        .ffn_norm = "output.LayerNorm",
                        .dense = "bert.pooler.dense",
                        .classifier = "classifier",
                        .dense_activation = Activation::kTanh,
                        .transform = "cls.predictions.transform.dense",
                        .transform_norm = "cls.predictions.transform.LayerNorm",
                        .vocabulary_bias = "cls.predictions.bias"};

constexpr Kind kRoberta = [] {
  Kind kind = kBert;
  kind.dense = "classifier.dense";
  kind.classifier = "classifier.out_proj";
  kind.transform = "lm_head.dense";
  kind.transform_norm = "lm_head.layer_norm";
  kind.vocabulary_bias = "lm_head.bias";
  kind.positions_behind_padding = kind.drops_first_token = kind.transforms_by_gelu = true;
  return kind;
}();

constexpr Kind kDistilBert = {.layer = "transformer.layer",
                              .query = "attention.q_lin",
                              .key = "attention.k_lin",
                              .value = "attention.v_lin",
                              .attention_out = "attention.out_lin",
                              .attention_norm = "sa_layer_norm",
                              .ffn_in = "ffn.lin1",
                              .ffn_out = "ffn.lin2",
                              .ffn_norm = "output_layer_norm",
                              .dense = "pre_classifier",
                              .classifier = "classifier",
                              .dense_activation = Activation::kRelu,
                              .transform = "vocab_transform",
                              .transform_norm = "vocab_layer_norm",
                              .vocabulary_bias = "vocab_projector.bias",
                              .drops_attended = false,
                              .drops_tags_as_layers = true};

const Kind& kind_of(Family family) {
  return family == Family::kRoberta      ? kRoberta
         : family == Family::kDistilBert ? kDistilBert
                                         : kBert;
}

struct LayerSlots {
  LinearSlots qkv, attention_out, ffn_in, ffn_out;
  NormSlots attention_norm, ffn_norm;
};

class Encoder final : public Transformer {
 public:
  Encoder(const ModelConfig& config, Head head, const Tuning& tuning);
  Forward forward(GraphWriter& writer) const override;

 private:
  void add_classifier();
  void add_masked_lm();

  ValueId embeddings(GraphWriter& writer) const;
  ValueId layer(GraphWriter& writer, int i, ValueId x) const;
  double head_dropout() const;
  ValueId class_logits(GraphWriter& writer, ValueId x) const;

  const Kind& kind_;
  int word_ = -1, position_ = -1, type_ = -1;  // the last: -1 where a family has none
  NormSlots embedding_norm_;
  std::vector<LayerSlots> layers_;
  LinearSlots dense_, classifier_;  // of the classifier; the second of a tagger and of answers too
  LinearSlots transform_;           // of the masked language model's head
  NormSlots transform_norm_;
  int vocabulary_bias_ = -1;
};

Encoder::Encoder(const ModelConfig& config, Head head, const Tuning& tuning)
    : Transformer(config, head, tuning,
                  {.prefix = fmt::format("{}.", model_type(config.family)),
                   .own = {fmt::format("{}.", kind_of(config.family).layer), "embeddings."},
                   .not_weights = {"position_ids"}}),
      kind_(kind_of(config.family)) {
  const int64_t hidden = config.hidden_size;
  word_ = add_words("embeddings.word_embeddings.weight", /*is_factor=*/head == Head::kMaskedLm);
  position_ = add_table("embeddings.position_embeddings.weight", config.max_position_embeddings);
  if (config.type_vocab_size > 0) {
    type_ = add_table("embeddings.token_type_embeddings.weight", config.type_vocab_size);
  }
  embedding_norm_ = add_norm("embeddings.LayerNorm");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("{}.{}.", kind_.layer, i);
    begin(Stage::kLayer, int(i));
    LayerSlots slots;
    const std::string query = layer + kind_.query,
                      joined = query.substr(0, query.rfind('.')) + ".qkv";
    slots.qkv = add_joined_linear(joined, {query, layer + kind_.key, layer + kind_.value},
                                  {.out = hidden, .in = hidden});
    slots.attention_out = add_linear(layer + kind_.attention_out, {.out = hidden, .in = hidden});
    slots.attention_norm = add_norm(layer + kind_.attention_norm);
    slots.ffn_in =
        add_linear(layer + kind_.ffn_in, {.out = config.intermediate_size, .in = hidden});
    slots.ffn_out =
        add_linear(layer + kind_.ffn_out, {.out = hidden, .in = config.intermediate_size});
    slots.ffn_norm = add_norm(layer + kind_.ffn_norm);
    layers_.push_back(slots);
  }
  begin(Stage::kFinal);
  switch (head) {
    case Head::kNone:
      break;
    case Head::kClassifier:
      add_classifier();
      break;
    case Head::kMaskedLm:
      add_masked_lm();
      break;
    case Head::kTagger:
    case Head::kSpans:
      classifier_ = add_token_head();
      break;
    case Head::kCausalLm:
      fail(ErrorKind::kUsage,
           "--task clm: {} reads texts in both directions; it can learn classify, regress, tag, qa "
           "and mlm",
           model_type(config.family));
  }
  finish_table();
}

void Encoder::add_classifier() {
  const int64_t hidden = config_.hidden_size;
  dense_ = add_linear(kind_.dense, {.out = hidden, .in = hidden, .is_head = true});
  classifier_ =
      add_linear(kind_.classifier, {.out = config_.num_labels(), .in = hidden, .is_head = true});
}

void Encoder::add_masked_lm() {
  if (!config_.tie_word_embeddings) {
    fail(ErrorKind::kInput, "config.json: tie_word_embeddings is false; supported: true");
  }
  transform_ = add_linear(kind_.transform,
                          {.out = config_.hidden_size, .in = config_.hidden_size, .is_head = true});
  transform_norm_ = add_norm(kind_.transform_norm, /*is_head=*/true);
  vocabulary_bias_ = add_vector(kind_.vocabulary_bias, config_.vocab_size, Init::kZeros,
                                /*is_factor=*/true, /*is_head=*/true);
}

ValueId Encoder::embeddings(GraphWriter& writer) const {
  writer.begin_segment("embeddings");
  const ValueId y = writer.tokens("embeddings", config_.hidden_size);
  const auto words = writer.words(word_);
  writer.graph().add_node(
      embedding({.hidden = config_.hidden_size,
                 .eps = float(config_.layer_norm_eps),
                 .dropout = float(config_.embedding_dropout),
                 .site = 0,
                 .position_offset = kind_.positions_behind_padding ? config_.pad_token_id + 1 : 0,
                 .padding_id = config_.pad_token_id}),
      {words.values, writer.parameter(position_), type_ < 0 ? kNoValue : writer.parameter(type_),
       writer.parameter(embedding_norm_.gamma), writer.parameter(embedding_norm_.beta),
       words.scales},
      {y, writer.statistics("embeddings.stats", Rows::kTokens, 2)});
  return y;
}

ValueId Encoder::layer(GraphWriter& writer, int i, ValueId x) const {
  const LayerSlots& slots = layers_[size_t(i)];
  const std::string name = fmt::format("layer.{}", i);
  Graph& graph = writer.graph();
  writer.begin_segment(name);
  graph.begin_part(Part::kAttention);
  ValueId context = kNoValue;
  if (writer.sees_one_row(i)) {
    const auto rows = writer.end_rows(name, dropout_site(i, 0), slots.qkv, End::kFirst, x, x);
    x = rows.states, context = rows.context;
  } else {
    const ValueId qkv = writer.linear(name + ".qkv", slots.qkv, Activation::kNone, x);
    context = writer.attention(name, dropout_site(i, 0), qkv, /*causal=*/false);
  }
  graph.begin_part(Part::kSums);
  const ValueId attended =
      writer.linear(name + ".attended", slots.attention_out, Activation::kNone, context);
  const DropoutPlace drop_attended{dropout_site(i, 1),
                                   kind_.drops_attended ? config_.hidden_dropout : 0};
  const DropoutPlace drop_ffn{dropout_site(i, 2), config_.hidden_dropout};
  const ValueId middle = writer
                             .residual_norm(name + ".attention_norm", slots.attention_norm,
                                            drop_attended, attended, x, false)
                             .y;
  graph.begin_part(Part::kMlp);
  const ValueId inner =
      writer.linear(name + ".inner", slots.ffn_in, activation_of(config_.hidden_act), middle);
  graph.begin_part(Part::kSums);
  const ValueId out = writer.linear(name + ".ffn", slots.ffn_out, Activation::kNone, inner);
  return writer.residual_norm(name + ".ffn_norm", slots.ffn_norm, drop_ffn, out, middle, false).y;
}

double Encoder::head_dropout() const {
  if (head_ == Head::kSpans) return config_.answer_dropout;
  if (head_ == Head::kTagger && kind_.drops_tags_as_layers) return config_.hidden_dropout;
  return config_.classifier_dropout.value_or(config_.hidden_dropout);
}

ValueId Encoder::class_logits(GraphWriter& writer, ValueId x) const {
  const double rate = head_dropout();
  ValueId first = writer.end_token("first", End::kFirst, x);
  if (kind_.drops_first_token) {
    first = writer.dropout("first.dropped", rate, dropout_site(layers(), 1), first);
  }
  const ValueId pooled = writer.linear("pooled", dense_, kind_.dense_activation, first);
  const ValueId dropped = writer.dropout("dropped", rate, dropout_site(layers(), 0), pooled);
  return writer.linear("logits", classifier_, Activation::kNone, dropped);
}

Forward Encoder::forward(GraphWriter& writer) const {
  ValueId x = writer.first_layer() > 0 ? writer.given_states() : embeddings(writer);
  for (int i = writer.first_layer(); i < writer.end_layer(); ++i) x = layer(writer, i, x);
  writer.begin_segment("head");
  if (writer.is_prefix()) {
    return {writer.keeps_one_row() ? writer.end_token("first", End::kFirst, x) : x};
  }
  if (writer.options().purpose == Purpose::kEmbedding) return {x};
  if (head_ == Head::kClassifier) return {class_logits(writer, x)};
  if (has_token_head()) {
    return {writer.token_logits(classifier_, head_dropout(), dropout_site(layers(), 0), x)};
  }
  SNUG_CHECK(head_ == Head::kMaskedLm);
  const Activation activation =
      kind_.transforms_by_gelu ? Activation::kGelu : activation_of(config_.hidden_act);
  const ValueId transformed =
      writer.linear("transformed", transform_, activation, writer.target_rows(x));
  return {writer.layer_norm("transformed.norm", transform_norm_, transformed), word_,
          vocabulary_bias_};
}

}  // namespace

std::unique_ptr<Transformer> make_encoder(const ModelConfig& config, Head head,
                                          const Tuning& tuning) {
  return std::make_unique<Encoder>(config, head, tuning);
}

}  // namespace snug
