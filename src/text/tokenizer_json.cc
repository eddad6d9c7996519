#include "text/tokenizer_json.h"

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

// Early files do not state the type; the model is then recognised by the field only it has.
std::string model_type(const JsonFields& document) {
  const JsonFields model = document.object("model");
  if (model.has("type")) return model.text("type");
  if (model.has("max_input_chars_per_word")) return "WordPiece";
  if (model.has("merges")) return "BPE";
  if (model.has("unk_id")) return "Unigram";
  return model.text("type");  // which is missing
}

}  // namespace

std::string_view strip_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

std::vector<std::string> parse_vocab_object(const Json& vocab, std::string_view name,
                                            std::string_view origin) {
  const size_t size = vocab.size();
  if (size == 0) fail(ErrorKind::kInput, "{}: {} is empty", origin, name);
  if (size > kMaxVocabularySize) {
    fail(ErrorKind::kInput, "{}: {} has {} tokens, more than the {} supported", origin, name, size,
         kMaxVocabularySize);
  }
  std::vector<std::string> tokens(size);
  std::vector<bool> taken(size);
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id < 0 || id >= size) {
      fail(ErrorKind::kInput,
           "{}: token \"{}\" has id {}, expected an integer from 0 to {} ({} tokens, without gaps)",
           origin, token, id.dump(), size - 1, size);
    }
    const size_t place = id.get<size_t>();
    if (token.empty()) fail(ErrorKind::kInput, "{}: the token with id {} is empty", origin, place);
    if (taken[place]) {
      fail(ErrorKind::kInput, "{}: tokens \"{}\" and \"{}\" have the same id {}", origin,
           tokens[place], token, place);
    }
    taken[place] = true;
    tokens[place] = token;
  }
  return tokens;
}

std::vector<AddedToken> parse_added_tokens(const JsonFields& document, std::string_view origin) {
  std::vector<AddedToken> added;
  if (!document.find("added_tokens")) return added;
  size_t index = 0;
  for (const Json& entry : document.array("added_tokens")) {
    const JsonFields fields(entry, origin, fmt::format("added_tokens[{}]", index++));
    fields.allow_only(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = parse_added_token(fields);
    token.id = static_cast<int32_t>(fields.integer("id", 0, 2 * kMaxVocabularySize));
    added.push_back(std::move(token));
  }
  std::stable_sort(added.begin(), added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  const auto twice =
      std::adjacent_find(added.begin(), added.end(),
                         [](const AddedToken& a, const AddedToken& b) { return a.id == b.id; });
  if (twice != added.end()) {
    fail(ErrorKind::kInput, "{}: added tokens \"{}\" and \"{}\" have the same id {}", origin,
         twice->content, std::next(twice)->content, twice->id);
  }
  return added;
}

AddedToken parse_added_token(const JsonFields& fields) {
  AddedToken token;
  token.content = fields.text("content");
  token.single_word = fields.boolean_or("single_word", false);
  token.lstrip = fields.boolean_or("lstrip", false);
  token.rstrip = fields.boolean_or("rstrip", false);
  token.special = fields.boolean_or("special", false);
  token.normalized = fields.boolean_or("normalized", !token.special);
  return token;
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, std::string_view origin,
                                                const TokenizerConfig& config) {
  const Json json = parse_json(strip_byte_order_mark(text), origin);
  const JsonFields document(json, origin, "");
  document.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                       "pre_tokenizer", "post_processor", "decoder", "model"});
  if (document.text("version") != "1.0") document.refuse("version", "\"1.0\"");
  const std::string type = model_type(document);
  if (type == "WordPiece") {
    WordPieceSpec spec = parse_wordpiece_json(document, origin);
    apply_tokenizer_config(config, spec);
    return std::make_unique<WordPieceTokenizer>(std::move(spec), origin);
  }
  if (type == "BPE") {
    BpeSpec spec = parse_bpe_json(document, origin);
    apply_tokenizer_config(config, spec);
    return std::make_unique<BpeTokenizer>(std::move(spec), origin);
  }
  if (type == "Unigram") {
    UnigramSpec spec = parse_unigram_json(document, origin);
    apply_tokenizer_config(config, spec);
    return std::make_unique<UnigramTokenizer>(std::move(spec), origin);
  }
  fail(ErrorKind::kInput, "{}: unsupported model type \"{}\" (supported: WordPiece, BPE, Unigram)",
       origin, type);
}

}  // namespace snug
