// tokenizer.json of the "tokenizers" library, as far as WordPiece, byte-level BPE and Unigram go.
// Any component or field beyond that is refused by name. The blocks "truncation" and "padding" are
// the exception: they are read over, because here the caller says the length and nothing is ever
// padded.
#pragma once

#include <string_view>

#include "text/bpe.h"
#include "text/json_fields.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer_files.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

namespace snug {

inline constexpr size_t kMaxVocabularySize = 2'000'000;

// A document whose model is of that family; the other parts are checked against it.
WordPieceSpec parse_wordpiece_json(const JsonFields& document, std::string_view origin);
BpeSpec parse_bpe_json(const JsonFields& document, std::string_view origin);
UnigramSpec parse_unigram_json(const JsonFields& document, std::string_view origin);

// {"token": id, ...} in the order of ids, which must be the places 0 to n-1, each taken once:
// anything else would leave embedding rows without a token. `name` is the object's own, for errors.
std::vector<std::string> parse_vocab_object(const Json& vocab, std::string_view name,
                                            std::string_view origin);
std::vector<AddedToken> parse_added_tokens(const JsonFields& document, std::string_view origin);
// One entry of "added_tokens", without its id.
AddedToken parse_added_token(const JsonFields& fields);

// Applies tokenizer_config.json, which names the special tokens, can add tokens, and may change
// normalisation (WordPiece) or the space before the first word (BPE).
void apply_tokenizer_config(const TokenizerConfig& config, WordPieceSpec& spec);
void apply_tokenizer_config(const TokenizerConfig& config, BpeSpec& spec);
void apply_tokenizer_config(const TokenizerConfig& config, UnigramSpec& spec);
void apply_tokenizer_config(const TokenizerConfig& config, SentencePieceSpec& spec);
// Its tokenizer_class without "Tokenizer" and "Fast"; "" where it has none.
std::string tokenizer_class(const TokenizerConfig& config);

std::string_view strip_byte_order_mark(std::string_view text);

}  // namespace snug
