// Tokenizers from the contents of their files; load_tokenizer() finds the files in a folder.
// `origin` names the file in errors (kInput).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/json.h"
#include "text/tokenizer.h"

namespace snug {

// tokenizer_config.json; null where there is none.
struct TokenizerConfig {
  Json json;
  std::string origin = "tokenizer_config.json";
};

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, std::string_view origin,
                                                const TokenizerConfig& config = {});
// vocab.txt: WordPiece.
std::unique_ptr<Tokenizer> parse_vocab(std::string_view text, std::string_view origin,
                                       const TokenizerConfig& config = {});

struct NamedText {
  std::string_view text, origin;
};
// vocab.json and merges.txt: byte-level BPE, with RoBERTa's special tokens where the configuration
// or the vocabulary say so, and with GPT-2's otherwise.
std::unique_ptr<Tokenizer> parse_vocab_and_merges(const NamedText& vocab, const NamedText& merges,
                                                  const TokenizerConfig& config = {});

// A SentencePiece model file, spiece.model and the like: ALBERT's, XLNet's, XLM-RoBERTa's or T5's,
// where the configuration or the pieces say so, and otherwise none in particular.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string bytes, std::string_view origin,
                                               const TokenizerConfig& config = {});

}  // namespace snug
