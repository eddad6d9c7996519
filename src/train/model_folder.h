// A Hugging Face folder as snug uses it: the configuration, the tokenizer and the weights' headers,
// loaded and checked against each other before anything large happens; and the folder that a run
// writes.
#pragma once

#include <filesystem>
#include <memory>

#include "data/labels.h"
#include "model/config.h"
#include "model/model.h"
#include "model/weights.h"
#include "text/tokenizer.h"
#include "train/generation_config.h"

namespace snug {

struct ModelFolder {
  std::filesystem::path path;
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;

  // The labels that a model's head was trained to tell apart; empty for another head and
  // placeholder names.
  LabelSet trained_labels(Head head) const;
  // The token that ends a document; -1 where there is none.
  int32_t end_of_text() const;
  // How the model's files say that it writes; of an adapter's folder, its model's.
  GenerationConfig generation_config() const;
};

// The configuration alone; of an adapter's folder, its model's.
ModelConfig read_config(const std::filesystem::path& folder);

// `flag` named it, for messages.
ModelFolder open_model_folder(const std::filesystem::path& path, std::string_view flag = "--model");

// Writes configuration and tokenizer. Beside the weights (save_weights) they make a folder that
// `from_pretrained` and snug load. A model that writes keeps the generation_config.json of the
// folder `from` that it comes from; empty: of none. Takes memory of the order of the vocabulary's
// file: not for the middle of a run.
void save_description(const std::filesystem::path& path, const ModelConfig& config, Head head,
                      const Tokenizer& tokenizer, const std::filesystem::path& from);

}  // namespace snug
