// `snug init`: a fresh model folder whose vocabulary is learned from the user's text. For languages
// and jargon that no pre-trained vocabulary covers, and for trying snug where no pre-trained model
// is at hand.
#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "data/data_files.h"
#include "data/row_files.h"
#include "data/row_reader.h"
#include "snug/snug.h"
#include "text/bpe_trainer.h"
#include "text/wordpiece.h"
#include "text/wordpiece_trainer.h"
#include "train/model_folder.h"

namespace snug {
namespace {

Family family_of(const InitOptions& o) {
  const auto family = find_family(o.model_type);
  if (!family || *family == Family::kDistilBert) {
    fail(ErrorKind::kUsage, "--model-type is \"{}\", expected bert, roberta or gpt2", o.model_type);
  }
  return *family;
}

void check(const InitOptions& o) {
  if (o.hidden_size <= 0 || o.num_attention_heads <= 0 ||
      o.hidden_size % o.num_attention_heads != 0) {
    fail(ErrorKind::kUsage, "--hidden-size {} is not a multiple of --num-attention-heads {}",
         o.hidden_size, o.num_attention_heads);
  }
  if (std::filesystem::exists(std::filesystem::path(o.output_dir) / "config.json")) {
    fail(ErrorKind::kUsage, "{}: holds a model already; choose another --output-dir", o.output_dir);
  }
}

// Texts for a trainer of vocabularies. Byte-level tokens hold white space, so there a text file is
// read as it is.
template <class Trainer>
void feed_all(const InitOptions& options, Trainer& trainer, bool documents) {
  RowReaderOptions reader_options;
  reader_options.columns.text = options.text_column;
  reader_options.labels = LabelNeed::kIgnored;
  reader_options.has_header = options.header;
  reader_options.documents = documents;
  RowFiles files(find_data_files("--train", options.train).files, {.reading = reader_options});
  Progress progress("reading " + options.train, 0, "rows");
  uint64_t rows = 0;
  for (Row row; files.next(row); progress.update(++rows)) {
    trainer.feed(row.text);
    if (row.text_pair) trainer.feed(*row.text_pair);
  }
}

std::unique_ptr<Tokenizer> learn_tokenizer(const InitOptions& options, Family family) {
  const auto size = size_t(std::max<int64_t>(0, options.vocab_size));
  if (family == Family::kBert) {
    const NormalizerOptions normalizer{.lowercase = options.lowercase};
    WordPieceTrainer trainer({.normalizer = normalizer});
    feed_all(options, trainer, /*documents=*/false);
    return make_wordpiece_tokenizer(trainer.train(size), normalizer);
  }
  const BpeFamily kind = family == Family::kGpt2 ? BpeFamily::kGpt2 : BpeFamily::kRoberta;
  BpeTrainer trainer;
  feed_all(options, trainer, /*documents=*/true);
  return make_bpe_tokenizer(trainer.train(size, kind), kind);
}

// Through the parser, so that made-up sizes meet the same checks as a file's.
ModelConfig fresh_config(const InitOptions& o, Family family, const Tokenizer& tokenizer) {
  Json json = {{"model_type", o.model_type},
               {"vocab_size", tokenizer.vocab_size()},
               {"initializer_range", 0.02}};
  const int64_t inner = o.intermediate_size > 0 ? o.intermediate_size : 4 * o.hidden_size;
  const SpecialIds& ids = tokenizer.special_ids();
  if (family == Family::kGpt2) {
    json.update(Json{{"n_embd", o.hidden_size},
                     {"n_layer", o.num_hidden_layers},
                     {"n_head", o.num_attention_heads},
                     {"n_inner", inner},
                     {"n_positions", o.max_position_embeddings},
                     {"activation_function", "gelu_new"},
                     {"embd_pdrop", 0.1},
                     {"resid_pdrop", 0.1},
                     {"attn_pdrop", 0.1},
                     {"layer_norm_epsilon", 1e-5},
                     {"bos_token_id", ids.bos},
                     {"eos_token_id", ids.eos}});
  } else {
    const bool roberta = family == Family::kRoberta;
    json.update(
        Json{{"hidden_size", o.hidden_size},
             {"num_hidden_layers", o.num_hidden_layers},
             {"num_attention_heads", o.num_attention_heads},
             {"intermediate_size", inner},
             {"hidden_act", "gelu"},
             {"hidden_dropout_prob", 0.1},
             {"attention_probs_dropout_prob", 0.1},
             // RoBERTa's positions begin behind its padding id.
             {"max_position_embeddings", o.max_position_embeddings + (roberta ? ids.pad + 1 : 0)},
             {"type_vocab_size", roberta ? 1 : 2},
             {"layer_norm_eps", roberta ? 1e-5 : 1e-12},
             {"pad_token_id", ids.pad}});
    if (roberta) json.update(Json{{"bos_token_id", ids.bos}, {"eos_token_id", ids.eos}});
  }
  return parse_config(json.dump(), "the flags of snug init");
}

// Weights that exist only while they are read.
class FreshWeights : public Memory {
 public:
  FreshWeights(const ParameterTable& table, const LoadOptions& options)
      : table_(table), options_(options) {}

  Block parameter(size_t index) {
    current_ = index;
    return {this, 0, size_t(table_[index].size()) * sizeof(float)};
  }
  void read(size_t offset, std::span<std::byte> to) const override {
    const std::span<float> values(reinterpret_cast<float*>(to.data()), to.size() / sizeof(float));
    initialize(table_[current_], offset / sizeof(float), values, options_);
  }
  void write(size_t, std::span<const std::byte>) override {
    SNUG_CHECK(!"fresh weights are only read");
  }

 private:
  const ParameterTable& table_;
  LoadOptions options_;
  size_t current_ = 0;
};

}  // namespace

void init_model(const InitOptions& options) {
  const Family family = family_of(options);
  check(options);
  const auto tokenizer = learn_tokenizer(options, family);
  const ModelConfig config = fresh_config(options, family, *tokenizer);
  const Head head = family == Family::kGpt2
                        ? Head::kCausalLm
                        : Head::kNone;  // GPT-2's head has no weights of its own
  const auto model = make_model(config, head);
  FreshWeights weights(model->parameters(),
                       {.seed = options.seed, .initializer_range = config.initializer_range});
  make_directories(options.output_dir);
  save_weights(options.output_dir, *model, [&](size_t i) { return weights.parameter(i); });
  save_description(options.output_dir, config, head, *tokenizer, {});
  say(fmt::format("{}: {} tokens, {} layers of {}, {:.1f} million parameters", options.output_dir,
                  config.vocab_size, config.num_hidden_layers, config.hidden_size,
                  double(parameter_count(model->parameters())) / 1e6));
}

}  // namespace snug
