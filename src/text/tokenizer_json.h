// tokenizer.json of the "tokenizers" library, as far as WordPiece goes. Any component or field
// beyond that is refused by name. The blocks "truncation" and "padding" are the exception: they are
// read over, because here the caller says the length and nothing is ever padded.
#pragma once

#include <string_view>

#include "text/json_fields.h"
#include "text/wordpiece.h"

namespace snug {

inline constexpr size_t kMaxVocabularySize = 2'000'000;

WordPieceSpec parse_wordpiece_json(std::string_view text, std::string_view origin);
// One entry of "added_tokens", without its id.
AddedToken parse_added_token(const JsonFields& fields);
// [CLS] A [SEP] and [CLS] A [SEP] B [SEP], also as the JSON of the post-processor.
void set_bert_template(WordPieceSpec& spec, int32_t cls_id, int32_t sep_id);
// Applies tokenizer_config.json, which may change normalisation, names the special tokens and can
// add tokens.
void apply_tokenizer_config(const TokenizerConfig& config, WordPieceSpec& spec);

}  // namespace snug
