// GPT-2 (Radford et al. 2019) as Hugging Face stores it: pre-norm decoder layers, weights as [in,
// out], and the word table as head, unless the configuration says otherwise. A layer's second sum
// and the next layer's first norm are one operator, so a layer ends with the norm of the next. For
// recomputation that norm belongs to the layer it ends: then the sum alone goes from segment to
// segment, and the norm's output follows from it.
#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "model/transformer.h"
#include "ops/embedding.h"

namespace snug {
namespace {

constexpr double kTaggerDropout = 0.1;  // transformers' where the configuration names none

struct LayerSlots {
  NormSlots attention_norm, ffn_norm;
  LinearSlots qkv, attention_out, ffn_in, ffn_out;
};

class Gpt2 final : public Transformer {
 public:
  Gpt2(const ModelConfig& config, Head head, const Tuning& tuning);
  Forward forward(GraphWriter& writer) const override;

 private:
  ValueId embeddings(GraphWriter& writer) const;
  // What goes from one layer to the next: the residual stream and its norm.
  using Stream = GraphWriter::Normed;
  Stream stream_before(GraphWriter& writer, int layer) const;
  Stream layer(GraphWriter& writer, int i, const Stream& stream) const;
  const NormSlots& norm_before(int layer) const {
    return layer == layers() ? final_norm_ : layers_[size_t(layer)].attention_norm;
  }

  int word_ = -1, position_ = -1, vocabulary_ = -1;  // the last: the head's weight
  std::vector<LayerSlots> layers_;
  NormSlots final_norm_;
  LinearSlots classifier_;  // of texts, of tokens, or of the ends of answers
};

Gpt2::Gpt2(const ModelConfig& config, Head head, const Tuning& tuning)
    : Transformer(config, head, tuning,
                  {.prefix = "transformer.",
                   .own = {"h.", "wte.", "wpe.", "ln_f."},
                   .not_weights = {".attn.bias", ".attn.masked_bias"},
                   .in_out = true}) {
  if (head == Head::kMaskedLm) {
    fail(ErrorKind::kUsage,
         "--task mlm: gpt2 reads texts in one direction; it can learn clm, classify, regress, tag "
         "and qa");
  }
  const int64_t hidden = config.hidden_size;
  const double small = 1.0 / std::sqrt(2.0 * double(config.num_hidden_layers));
  const auto conv1d = [&](const std::string& name, int64_t in, int64_t out,
                          double init_scale = 1.0) {
    return add_linear(
        name, {.out = out, .in = in, .layout = WeightLayout::kInOut, .init_scale = init_scale});
  };
  const bool has_head = head == Head::kCausalLm, tied = config.tie_word_embeddings;
  word_ = add_words("wte.weight", /*is_factor=*/has_head && tied);
  position_ = add_table("wpe.weight", config.max_position_embeddings);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("h.{}.", i);
    begin(Stage::kLayer, int(i));
    LayerSlots slots;
    slots.attention_norm = add_norm(layer + "ln_1");
    slots.qkv = conv1d(layer + "attn.c_attn", hidden, 3 * hidden);
    slots.attention_out = conv1d(layer + "attn.c_proj", hidden, hidden, small);
    slots.ffn_norm = add_norm(layer + "ln_2");
    slots.ffn_in = conv1d(layer + "mlp.c_fc", hidden, config.intermediate_size);
    slots.ffn_out = conv1d(layer + "mlp.c_proj", config.intermediate_size, hidden, small);
    layers_.push_back(slots);
  }
  begin(Stage::kFinal);
  final_norm_ = add_norm("ln_f");
  vocabulary_ = word_;
  if (has_head && !tied) {
    vocabulary_ = add({.name = "lm_head.weight",
                       .rows = config.vocab_size,
                       .cols = hidden,
                       .is_factor = true,
                       .padded_rows = padded_vocabulary(config.vocab_size),
                       .is_head = true,
                       .quantizable = true,
                       .parts = {{"lm_head.weight", config.vocab_size}}});
  }
  if (head == Head::kClassifier) {
    classifier_ = add_linear(
        "score", {.out = config.num_labels(), .in = hidden, .is_head = true, .has_bias = false});
  } else if (has_token_head()) {
    classifier_ = add_token_head();
  }
  finish_table();
}

ValueId Gpt2::embeddings(GraphWriter& writer) const {
  writer.begin_segment("embeddings");
  const ValueId y = writer.tokens("embeddings", config_.hidden_size);
  const auto words = writer.words(word_);
  writer.graph().add_node(
      embedding({.hidden = config_.hidden_size,
                 .norm = false,
                 .dropout = float(config_.embedding_dropout),
                 .site = 0}),
      {words.values, writer.parameter(position_), kNoValue, kNoValue, kNoValue, words.scales},
      {y, kNoValue});
  return y;
}

Gpt2::Stream Gpt2::layer(GraphWriter& writer, int i, const Stream& stream) const {
  const LayerSlots& slots = layers_[size_t(i)];
  const std::string name = fmt::format("layer.{}", i);
  Graph& graph = writer.graph();
  writer.begin_segment(name);
  graph.begin_part(Part::kAttention);
  ValueId context = kNoValue, states = stream.sum;
  if (writer.sees_one_row(i)) {
    const auto rows =
        writer.end_rows(name, dropout_site(i, 0), slots.qkv, End::kLast, stream.sum, stream.y);
    states = rows.states, context = rows.context;
  } else {
    const ValueId qkv = writer.linear(name + ".qkv", slots.qkv, Activation::kNone, stream.y);
    context = writer.attention(name, dropout_site(i, 0), qkv, /*causal=*/true);
  }
  graph.begin_part(Part::kSums);
  const ValueId attended =
      writer.linear(name + ".attended", slots.attention_out, Activation::kNone, context);
  const auto [middle, middle_sum] = writer.residual_norm(
      name + ".ffn_norm", slots.ffn_norm, {dropout_site(i, 1), config_.hidden_dropout}, attended,
      states, /*sum_goes_on=*/true);
  graph.begin_part(Part::kMlp);
  const ValueId inner =
      writer.linear(name + ".inner", slots.ffn_in, activation_of(config_.hidden_act), middle);
  graph.begin_part(Part::kSums);
  const ValueId out = writer.linear(name + ".ffn", slots.ffn_out, Activation::kNone, inner);
  const bool goes_on = i + 1 < layers() || writer.is_prefix();
  return writer.residual_norm(name + ".next_norm", norm_before(i + 1),
                              {dropout_site(i, 2), config_.hidden_dropout}, out, middle_sum,
                              goes_on);
}

Gpt2::Stream Gpt2::stream_before(GraphWriter& writer, int layer) const {
  const ValueId sum = layer > 0 ? writer.given_states() : embeddings(writer);
  return {writer.layer_norm("first_norm", norm_before(layer), sum), sum};
}

Forward Gpt2::forward(GraphWriter& writer) const {
  Stream stream = stream_before(writer, writer.first_layer());
  for (int i = writer.first_layer(); i < writer.end_layer(); ++i) stream = layer(writer, i, stream);
  writer.begin_segment("head");
  if (writer.is_prefix()) {
    return {writer.keeps_one_row() ? writer.end_token("last", End::kLast, stream.sum) : stream.sum};
  }
  if (writer.options().purpose == Purpose::kEmbedding) return {stream.y};
  // The last token alone has seen all of its text.
  if (head_ == Head::kClassifier) {
    return {writer.linear("logits", classifier_, Activation::kNone,
                          writer.end_token("last", End::kLast, stream.y))};
  }
  if (has_token_head()) {
    const double rate =
        head_ == Head::kTagger ? config_.classifier_dropout.value_or(kTaggerDropout) : 0;
    return {writer.token_logits(classifier_, rate, dropout_site(layers(), 0), stream.y)};
  }
  SNUG_CHECK(head_ == Head::kCausalLm);
  return {writer.target_rows(stream.y), vocabulary_};
}

}  // namespace

std::unique_ptr<Transformer> make_gpt2(const ModelConfig& config, Head head, const Tuning& tuning) {
  return std::make_unique<Gpt2>(config, head, tuning);
}

}  // namespace snug
