// WordPiece from its files: the parts of tokenizer.json, and vocab.txt.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/error.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace snug {
namespace {

// Beyond this, one "word" could make matching slow; the usual value is 100.
constexpr int64_t kMaxCharsPerWord = 10'000;

SpecialNames bert_names() {
  SpecialNames names;
  names.pad = "[PAD]", names.unk = "[UNK]", names.cls = "[CLS]", names.sep = "[SEP]";
  names.mask = "[MASK]";
  return names;
}

NormalizerOptions parse_normalizer(const JsonFields& document, std::string_view origin) {
  if (!document.find("normalizer")) return {false, false, false, false};
  const JsonFields fields = document.object("normalizer");
  const std::string type = fields.text("type");
  if (type != "BertNormalizer") {
    fail(ErrorKind::kInput, "{}: unsupported normalizer \"{}\" (supported: BertNormalizer)", origin,
         type);
  }
  fields.allow_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  NormalizerOptions options;
  options.clean_text = fields.boolean_or("clean_text", true);
  options.handle_chinese_chars = fields.boolean_or("handle_chinese_chars", true);
  options.lowercase = fields.boolean_or("lowercase", true);
  if (fields.find("strip_accents")) options.strip_accents = fields.boolean("strip_accents");
  return options;
}

void check_pre_tokenizer(const JsonFields& document, std::string_view origin) {
  if (!document.find("pre_tokenizer")) {
    fail(ErrorKind::kInput, "{}: pre_tokenizer is missing (supported: BertPreTokenizer)", origin);
  }
  const JsonFields fields = document.object("pre_tokenizer");
  const std::string type = fields.text("type");
  if (type != "BertPreTokenizer") {
    fail(ErrorKind::kInput, "{}: unsupported pre_tokenizer \"{}\" (supported: BertPreTokenizer)",
         origin, type);
  }
  fields.allow_only({"type"});
}

void parse_model(const JsonFields& document, std::string_view origin, WordPieceSpec& spec) {
  const JsonFields model = document.object("model");
  model.allow_only(
      {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  spec.model.unk_token = model.text("unk_token");
  spec.model.continuing_prefix = model.text("continuing_subword_prefix");
  spec.model.max_chars_per_word = model.integer("max_input_chars_per_word", 0, kMaxCharsPerWord);
  spec.common.tokens = parse_vocab_object(model.object("vocab").json(), "model.vocab", origin);
}

void parse_decoder(const JsonFields& document, std::string_view origin, WordPieceSpec& spec) {
  if (!document.find("decoder")) return;
  const JsonFields fields = document.object("decoder");
  const std::string type = fields.text("type");
  if (type != "WordPiece") {
    fail(ErrorKind::kInput, "{}: unsupported decoder \"{}\" (supported: WordPiece)", origin, type);
  }
  fields.allow_only({"type", "prefix", "cleanup"});
  if (fields.has("prefix")) fields.text("prefix");
  fields.boolean_or("cleanup", true);
  spec.common.decoder = fields.json();
}

void check_vocab_line(std::string_view token, size_t line, std::string_view origin) {
  if (token.empty()) {
    fail(ErrorKind::kInput, "{}: line {} is blank, expected one token on each line", origin, line);
  }
  if (token.find('\r') != std::string_view::npos) {
    fail(ErrorKind::kInput, "{}: line {} has a carriage return inside the token", origin, line);
  }
  const size_t invalid = find_invalid_utf8(token);
  if (invalid != std::string_view::npos) {
    fail(ErrorKind::kInput, "{}: line {}, byte {}: not valid UTF-8", origin, line, invalid + 1);
  }
}

// One token a line, its id the number of the line from 0. A byte order mark, CRLF and blank lines
// at the end are forgiven.
std::vector<std::string> parse_vocab_lines(std::string_view text, std::string_view origin) {
  text = strip_byte_order_mark(text);
  const size_t last = text.find_last_not_of("\r\n");
  if (last == std::string_view::npos) {
    fail(ErrorKind::kInput, "{}: empty, expected one token on each line", origin);
  }
  text = text.substr(0, last + 1);

  std::vector<std::string> tokens;
  std::unordered_map<std::string_view, size_t> line_of;
  for (size_t pos = 0, line = 1; pos <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', pos), text.size());
    std::string_view token = text.substr(pos, end - pos);
    if (token.ends_with('\r')) token.remove_suffix(1);
    check_vocab_line(token, line, origin);
    const auto [it, fresh] = line_of.try_emplace(token, line);
    if (!fresh) {
      fail(ErrorKind::kInput, "{}: token \"{}\" stands on line {} and again on line {}", origin,
           token, it->second, line);
    }
    if (line > kMaxVocabularySize) {
      fail(ErrorKind::kInput, "{}: more than the {} tokens supported", origin, kMaxVocabularySize);
    }
    tokens.emplace_back(token);
    pos = end + 1;
  }
  return tokens;
}

// The ids of the special tokens that are there; all but the mask must be.
void add_special_tokens(WordPieceSpec& spec, std::string_view origin) {
  const Vocabulary vocabulary(spec.common.tokens);
  SpecialNames& names = spec.common.specials;
  std::vector<AddedToken>& all_added = spec.common.added;
  const auto add = [&](std::optional<std::string>& name, std::string_view role, bool required) {
    const int32_t id = name ? vocabulary.find(*name) : -1;
    if (id < 0 && required) {
      fail(ErrorKind::kInput, "{}: the {} token \"{}\" is missing", origin, role,
           name.value_or(""));
    }
    if (id < 0) return name.reset(), id;
    const auto known = [id](const AddedToken& token) { return token.id == id; };
    if (std::none_of(all_added.begin(), all_added.end(), known)) {
      all_added.push_back({.content = *name, .id = id, .special = true});
    }
    return id;
  };
  add(names.unk, "unknown", true);
  TextEnds ends;
  ends.cls = add(names.cls, "classification", true);
  ends.sep = add(names.sep, "separator", true);
  add(names.pad, "padding", true);
  add(names.mask, "mask", false);
  std::sort(all_added.begin(), all_added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  spec.model.unk_token = *names.unk;
  spec.common.templates = bert_templates(ends);
}

// Other classes read vocab.txt too, but split words differently.
void check_tokenizer_class(const TokenizerConfig& config) {
  const std::string name = tokenizer_class(config);
  constexpr std::array<std::string_view, 8> kLikeBert = {
      "", "Bert", "ConvBert", "DistilBert", "Electra", "LayoutLM", "MobileBert", "SqueezeBert"};
  if (std::find(kLikeBert.begin(), kLikeBert.end(), name) == kLikeBert.end()) {
    fail(ErrorKind::kInput, "{}: unsupported tokenizer_class \"{}\" for a vocab.txt", config.origin,
         config.json["tokenizer_class"].get<std::string>());
  }
}

}  // namespace

WordPieceSpec parse_wordpiece_json(const JsonFields& document, std::string_view origin) {
  WordPieceSpec spec;
  parse_model(document, origin, spec);
  spec.model.normalizer = parse_normalizer(document, origin);
  check_pre_tokenizer(document, origin);
  spec.common.added = parse_added_tokens(document, origin);
  spec.common.templates = plain_templates();
  if (document.find("post_processor")) {
    const JsonFields fields = document.object("post_processor");
    spec.common.templates = parse_templates(fields, origin);
    spec.common.post_processor = fields.json();
  }
  parse_decoder(document, origin, spec);
  spec.common.specials = bert_names();
  spec.common.specials.unk = spec.model.unk_token;
  return spec;
}

std::unique_ptr<Tokenizer> parse_vocab(std::string_view text, std::string_view origin,
                                       const TokenizerConfig& config) {
  WordPieceSpec spec;
  spec.common.tokens = parse_vocab_lines(text, origin);
  spec.common.specials = bert_names();
  check_tokenizer_class(config);
  apply_tokenizer_config(config, spec);
  add_special_tokens(spec, origin);
  return std::make_unique<WordPieceTokenizer>(std::move(spec), origin);
}

std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(std::vector<std::string> vocabulary,
                                                    const NormalizerOptions& options) {
  WordPieceSpec spec;
  spec.common.tokens = std::move(vocabulary);
  spec.common.specials = bert_names();
  spec.model.normalizer = options;
  add_special_tokens(spec, "vocabulary");
  return std::make_unique<WordPieceTokenizer>(std::move(spec), "vocabulary");
}

}  // namespace snug
