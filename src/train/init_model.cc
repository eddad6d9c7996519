// `snug init`: a fresh model folder whose vocabulary is learned from the user's text. For languages and jargon that no
// pre-trained vocabulary covers, and for trying snug where no pre-trained model is at hand.
#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "data/row_reader.h"
#include "snug/snug.h"
#include "text/wordpiece.h"
#include "text/wordpiece_trainer.h"
#include "train/model_folder.h"

namespace snug {
namespace {

void check(const InitOptions& o) {
  if (o.model_type != "bert") {
    fail(ErrorKind::kUsage, "--model-type {} is not there yet; this version makes bert", o.model_type);
  }
  if (o.hidden_size <= 0 || o.num_attention_heads <= 0 || o.hidden_size % o.num_attention_heads != 0) {
    fail(ErrorKind::kUsage, "--hidden-size {} is not a multiple of --num-attention-heads {}", o.hidden_size,
         o.num_attention_heads);
  }
  if (std::filesystem::exists(std::filesystem::path(o.output_dir) / "config.json")) {
    fail(ErrorKind::kUsage, "{}: holds a model already; choose another --output-dir", o.output_dir);
  }
}

std::vector<std::string> learn_vocabulary(const InitOptions& options, const NormalizerOptions& normalizer) {
  RowReaderOptions reader_options;
  reader_options.columns.text = options.text_column;
  reader_options.labels = LabelNeed::kIgnored;
  reader_options.has_header = options.header;
  const auto reader = open_rows(options.train, reader_options);
  WordPieceTrainer trainer({.normalizer = normalizer});
  Progress progress("reading " + options.train, 0, "rows");
  uint64_t rows = 0;
  for (Row row; reader->next(row); progress.update(++rows)) {
    trainer.feed(row.text);
    if (row.text_pair) trainer.feed(*row.text_pair);
  }
  return trainer.train(size_t(options.vocab_size));
}

BertConfig fresh_config(const InitOptions& options, int64_t vocabulary) {
  // Through the parser, so that made-up sizes meet the same checks as a file's.
  const std::string text = fmt::format(
      R"({{"model_type": "bert", "architectures": ["BertModel"], "vocab_size": {}, "hidden_size": {}, )"
      R"("num_hidden_layers": {}, "num_attention_heads": {}, "intermediate_size": {}, "hidden_act": "gelu", )"
      R"("hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": {}, )"
      R"("type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}})",
      vocabulary, options.hidden_size, options.num_hidden_layers, options.num_attention_heads,
      options.intermediate_size > 0 ? options.intermediate_size : 4 * options.hidden_size,
      options.max_position_embeddings);
  return parse_config(text, "the flags of snug init");
}

// Weights that exist only while they are read.
class FreshWeights : public Memory {
 public:
  FreshWeights(const ParameterTable& table, const LoadOptions& options) : table_(table), options_(options) {}

  Block parameter(size_t index) {
    current_ = index;
    return {this, 0, size_t(table_[index].size()) * sizeof(float)};
  }
  void read(size_t offset, std::span<std::byte> to) const override {
    const std::span<float> values(reinterpret_cast<float*>(to.data()), to.size() / sizeof(float));
    initialize(table_[current_], offset / sizeof(float), values, options_);
  }
  void write(size_t, std::span<const std::byte>) override { SNUG_CHECK(!"fresh weights are only read"); }

 private:
  const ParameterTable& table_;
  LoadOptions options_;
  size_t current_ = 0;
};

}  // namespace

void init_model(const InitOptions& options) {
  check(options);
  const NormalizerOptions normalizer{.lowercase = options.lowercase};
  const auto tokenizer = make_wordpiece_tokenizer(learn_vocabulary(options, normalizer), normalizer);
  const BertConfig config = fresh_config(options, tokenizer->vocab_size());
  const auto model = make_bert(config, Head::kNone);
  FreshWeights weights(model->parameters(), {.seed = options.seed, .initializer_range = config.initializer_range});
  make_directories(options.output_dir);
  save_weights(options.output_dir, model->parameters(), [&](size_t i) { return weights.parameter(i); });
  save_description(options.output_dir, config, *tokenizer);
  say(fmt::format("{}: {} tokens, {} layers of {}, {:.1f} million parameters", options.output_dir, config.vocab_size,
                  config.num_hidden_layers, config.hidden_size, double(parameter_count(model->parameters())) / 1e6));
}

}  // namespace snug
