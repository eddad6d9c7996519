// A model's config.json. Families name the same things differently (hidden_size, n_embd); here they
// have one name. Every number is checked for type and range while parsing, before anything is sized
// by it; what snug does not know is kept and written back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

enum class HiddenAct { kGelu, kGeluTanh, kRelu };

enum class Family { kBert, kRoberta, kDistilBert, kGpt2 };

// What stands on top of the layers. A causal or masked language model's head shares the word table.
enum class Head {
  kNone,
  kClassifier,  // of a whole text: what its outputs mean is the Problem
  kTagger,      // of single tokens
  kSpans,       // the first and the last token of an answer
  kCausalLm,
  kMaskedLm,
};

// What a classifier's outputs stand for.
enum class Problem { kOneLabel, kManyLabels, kNumbers };

struct ModelConfig {
  Family family = Family::kBert;
  std::vector<std::string> architectures;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t max_position_embeddings = 0;
  int64_t type_vocab_size = 2;            // 0: no such table
  int64_t pad_token_id = 0;               // -1: none
  std::optional<int64_t> eos_token_id{};  // where the file names one
  HiddenAct hidden_act = HiddenAct::kGelu;
  double embedding_dropout = 0.1;  // BERT's files have one figure for this and the next
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  std::optional<double> classifier_dropout;  // absent: hidden_dropout
  double answer_dropout = 0;                 // before the head of answers: DistilBERT's
  bool tie_word_embeddings = true;           // the word table is the head of a language model too
  bool quantized = false;  // the weights of layers and words are int8, as snug quantize writes them
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::vector<std::string>
      labels;                      // by id; empty where the file names none and its head needs none
  std::optional<Problem> problem;  // where the file names one
  std::string raw;                 // the document as it was read

  int64_t num_labels() const { return int64_t(labels.size()); }
  // One output is a number, as transformers has it.
  Problem problem_type() const {
    return problem.value_or(labels.size() == 1 ? Problem::kNumbers : Problem::kOneLabel);
  }
  // Tokens a text may have: RoBERTa's positions begin behind its padding id.
  int64_t max_length() const {
    return family == Family::kRoberta ? max_position_embeddings - pad_token_id - 1
                                      : max_position_embeddings;
  }
};

// What transformers assumes where a file is silent; sizes are zero.
ModelConfig default_config(Family family);
std::string_view model_type(Family family);  // "bert", "roberta", "distilbert", "gpt2"
std::optional<Family> find_family(std::string_view model_type);
// As transformers names the class: "BertForSequenceClassification", "GPT2LMHeadModel".
std::string architecture(Family family, Head head);
// The head that the file's architectures name; kNone for those snug does not know.
Head head_of(const ModelConfig& config);

// `origin` is the file name for messages. Errors are kInput and name the field, what it is and what
// was expected.
ModelConfig parse_config(std::string_view text, std::string_view origin);

// Of a model folder: config.json, or bert_config.json where Google's BERT came without one.
std::filesystem::path config_path(const std::filesystem::path& folder);
ModelConfig load_config(const std::filesystem::path& folder);

// config.json of a model with this head whose weights are fp32, on top of the fields of
// `config.raw`. Sizes are written as they stand in `config`; a classifier names `config.labels` and
// what they stand for.
std::string to_json(const ModelConfig& config, Head head);

}  // namespace snug
