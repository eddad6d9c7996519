// What the families write alike when a tokenizer is saved as a Hugging Face folder.
#pragma once

#include <filesystem>
#include <string>

#include "text/subword_tokenizer.h"

namespace snug {

// The parts of tokenizer.json that are the family's own, as JSON texts.
struct TokenizerJsonParts {
  std::string normalizer = "null", pre_tokenizer, post_processor, decoder, model;
};
std::string tokenizer_json_text(const TokenizerSpec& spec, const TokenizerJsonParts& parts);
std::string vocab_json_text(const Vocabulary& vocabulary);  // {"token":id,...}

// tokenizer_config.json and special_tokens_map.json. `settings` are the family's own.
void save_tokenizer_config(const std::filesystem::path& folder, const TokenizerSpec& spec,
                           const OrderedJson& settings);

}  // namespace snug
