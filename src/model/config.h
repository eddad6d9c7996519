// A BERT model's config.json. Every number is checked for type and range while parsing, before
// anything is sized by it; what snug does not know is kept and written back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

enum class HiddenAct { kGelu, kGeluTanh, kRelu };

struct BertConfig {
  std::string model_type = "bert";
  std::vector<std::string> architectures;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t max_position_embeddings = 0;
  int64_t type_vocab_size = 2;
  int64_t pad_token_id = 0;
  HiddenAct hidden_act = HiddenAct::kGelu;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  std::optional<double> classifier_dropout;  // absent: hidden_dropout
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::vector<std::string> labels;  // by id; empty where the file names none
  std::string problem_type;         // empty where the file names none
  std::string raw;                  // the document as it was read

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  int64_t num_labels() const { return int64_t(labels.size()); }
};

// `origin` is the file name for messages. Errors are kInput and name the field, what it is and what
// was expected.
BertConfig parse_config(std::string_view text, std::string_view origin);

// config.json of a sequence classifier with `config.labels` (one label: regression) whose weights
// are fp32, on top of the fields of `config.raw`. Sizes are written as they stand in `config`.
std::string to_json(const BertConfig& config);

}  // namespace snug
