// BERT (Devlin et al. 2018) and RoBERTa (Liu et al. 2019) as Hugging Face stores them: post-norm encoder layers. They
// differ in where positions begin, in token types and in their heads. Query, key and value weights are one fused
// parameter each layer.
#include <fmt/format.h>

#include "core/error.h"
#include "model/transformer.h"
#include "ops/embedding.h"

namespace snug {
namespace {

struct LayerSlots {
  LinearSlots qkv, attention_out, ffn_in, ffn_out;
  NormSlots attention_norm, ffn_norm;
};

class Encoder final : public Transformer {
 public:
  Encoder(const ModelConfig& config, Head head, const Tuning& tuning);
  Forward forward(GraphWriter& writer) const override;

 private:
  bool roberta() const { return config_.family == Family::kRoberta; }
  void add_classifier();
  void add_masked_lm();

  ValueId embeddings(GraphWriter& writer) const;
  ValueId layer(GraphWriter& writer, int i, ValueId x) const;
  double head_dropout() const { return config_.classifier_dropout.value_or(config_.hidden_dropout); }
  ValueId class_logits(GraphWriter& writer, ValueId x) const;

  int word_ = -1, position_ = -1, type_ = -1;
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
                   .own = {"encoder.layer.", "embeddings."},
                   .not_weights = {"position_ids"}}) {
  const int64_t hidden = config.hidden_size;
  word_ = add_words("embeddings.word_embeddings.weight", /*is_factor=*/head == Head::kMaskedLm);
  position_ = add_table("embeddings.position_embeddings.weight", config.max_position_embeddings);
  type_ = add_table("embeddings.token_type_embeddings.weight", config.type_vocab_size);
  embedding_norm_ = add_norm("embeddings.LayerNorm");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("encoder.layer.{}.", i), self = layer + "attention.self.";
    begin(Stage::kLayer, int(i));
    LayerSlots slots;
    slots.qkv = add_joined_linear(self + "qkv", {self + "query", self + "key", self + "value"}, {.out = hidden, .in = hidden});
    slots.attention_out = add_linear(layer + "attention.output.dense", {.out = hidden, .in = hidden});
    slots.attention_norm = add_norm(layer + "attention.output.LayerNorm");
    slots.ffn_in = add_linear(layer + "intermediate.dense", {.out = config.intermediate_size, .in = hidden});
    slots.ffn_out = add_linear(layer + "output.dense", {.out = hidden, .in = config.intermediate_size});
    slots.ffn_norm = add_norm(layer + "output.LayerNorm");
    layers_.push_back(slots);
  }
  begin(Stage::kFinal);
  switch (head) {
    case Head::kNone: break;
    case Head::kClassifier: add_classifier(); break;
    case Head::kMaskedLm: add_masked_lm(); break;
    case Head::kTagger:
    case Head::kSpans: classifier_ = add_token_head(); break;
    case Head::kCausalLm:
      fail(ErrorKind::kUsage, "--task clm: {} reads texts in both directions; it can learn classify, regress, tag, qa and mlm",
           model_type(config.family));
  }
  finish_table();
}

void Encoder::add_classifier() {
  const int64_t hidden = config_.hidden_size;
  dense_ = add_linear(roberta() ? "classifier.dense" : "bert.pooler.dense", {.out = hidden, .in = hidden, .is_head = true});
  classifier_ = add_linear(roberta() ? "classifier.out_proj" : "classifier",
                           {.out = config_.num_labels(), .in = hidden, .is_head = true});
}

void Encoder::add_masked_lm() {
  if (!config_.tie_word_embeddings) {
    fail(ErrorKind::kInput, "config.json: tie_word_embeddings is false; supported: true");
  }
  const std::string place = roberta() ? "lm_head." : "cls.predictions.";
  transform_ = add_linear(place + (roberta() ? "dense" : "transform.dense"),
                          {.out = config_.hidden_size, .in = config_.hidden_size, .is_head = true});
  transform_norm_ = add_norm(place + (roberta() ? "layer_norm" : "transform.LayerNorm"), /*is_head=*/true);
  vocabulary_bias_ = add_vector(place + "bias", config_.vocab_size, Init::kZeros, /*is_factor=*/true, /*is_head=*/true);
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
                 .position_offset = roberta() ? config_.pad_token_id + 1 : 0,
                 .padding_id = config_.pad_token_id}),
      {words.values, writer.parameter(position_), writer.parameter(type_), writer.parameter(embedding_norm_.gamma),
       writer.parameter(embedding_norm_.beta), words.scales},
      {y, writer.statistics("embeddings.stats", Rows::kTokens, 2)});
  return y;
}

ValueId Encoder::layer(GraphWriter& writer, int i, ValueId x) const {
  const LayerSlots& slots = layers_[size_t(i)];
  const std::string name = fmt::format("layer.{}", i);
  Graph& graph = writer.graph();
  writer.begin_segment(name);
  graph.begin_part(Part::kAttention);
  const ValueId qkv = writer.linear(name + ".qkv", slots.qkv, Activation::kNone, x);
  const ValueId context = writer.attention(name, dropout_site(i, 0), qkv, /*causal=*/false);
  graph.begin_part(Part::kSums);
  const ValueId attended = writer.linear(name + ".attended", slots.attention_out, Activation::kNone, context);
  const ValueId middle =
      writer.residual_norm(name + ".attention_norm", slots.attention_norm, dropout_site(i, 1), attended, x, false).y;
  graph.begin_part(Part::kMlp);
  const ValueId inner = writer.linear(name + ".inner", slots.ffn_in, activation_of(config_.hidden_act), middle);
  graph.begin_part(Part::kSums);
  const ValueId out = writer.linear(name + ".ffn", slots.ffn_out, Activation::kNone, inner);
  return writer.residual_norm(name + ".ffn_norm", slots.ffn_norm, dropout_site(i, 2), out, middle, false).y;
}

// BERT drops out what its pooler gives, RoBERTa what goes into its first layer too.
ValueId Encoder::class_logits(GraphWriter& writer, ValueId x) const {
  const double rate = head_dropout();
  ValueId first = writer.first_token(x);
  if (roberta()) first = writer.dropout("first.dropped", rate, dropout_site(layers(), 1), first);
  const ValueId pooled = writer.linear("pooled", dense_, Activation::kTanh, first);
  const ValueId dropped = writer.dropout("dropped", rate, dropout_site(layers(), 0), pooled);
  return writer.linear("logits", classifier_, Activation::kNone, dropped);
}

Forward Encoder::forward(GraphWriter& writer) const {
  ValueId x = embeddings(writer);
  for (int i = 0; i < layers(); ++i) x = layer(writer, i, x);
  writer.begin_segment("head");
  if (writer.options().purpose == Purpose::kEmbedding) return {x};
  if (head_ == Head::kClassifier) return {class_logits(writer, x)};
  if (has_token_head()) return {writer.token_logits(classifier_, head_dropout(), dropout_site(layers(), 0), x)};
  SNUG_CHECK(head_ == Head::kMaskedLm);
  const Activation activation = roberta() ? Activation::kGelu : activation_of(config_.hidden_act);
  const ValueId transformed = writer.linear("transformed", transform_, activation, writer.target_rows(x));
  return {writer.layer_norm("transformed.norm", transform_norm_, transformed), word_, vocabulary_bias_};
}

}  // namespace

std::unique_ptr<Transformer> make_encoder(const ModelConfig& config, Head head, const Tuning& tuning) {
  return std::make_unique<Encoder>(config, head, tuning);
}

}  // namespace snug
