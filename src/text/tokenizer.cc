#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/error.h"
#include "core/file.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"
#include "text/wordpiece.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr SpecialNames bert_names() { return {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}; }

std::string_view strip_bom(std::string_view text) {
  constexpr std::string_view kBom = "\xEF\xBB\xBF";
  return text.starts_with(kBom) ? text.substr(kBom.size()) : text;
}

void check_vocab_line(std::string_view token, size_t line, std::string_view origin) {
  if (token.empty())
    fail(ErrorKind::kInput, "{}: line {} is blank, expected one token on each line", origin, line);
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
  text = strip_bom(text);
  const size_t last = text.find_last_not_of("\r\n");
  if (last == std::string_view::npos)
    fail(ErrorKind::kInput, "{}: empty, expected one token on each line", origin);
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
  const Vocabulary vocabulary(spec.tokens);
  SpecialNames& names = spec.specials;
  const auto add = [&](std::optional<std::string>& name, std::string_view role, bool required) {
    const int32_t id = name ? vocabulary.find(*name) : -1;
    if (id < 0 && required) {
      fail(ErrorKind::kInput, "{}: the {} token \"{}\" is missing", origin, role,
           name.value_or(""));
    }
    if (id < 0) return name.reset(), id;
    const auto known = [id](const AddedToken& token) { return token.id == id; };
    if (std::none_of(spec.added.begin(), spec.added.end(), known)) {
      spec.added.push_back({.content = *name, .id = id, .special = true});
    }
    return id;
  };
  add(names.unk, "unknown", true);
  const int32_t cls = add(names.cls, "classification", true),
                sep = add(names.sep, "separator", true);
  add(names.pad, "padding", true);
  add(names.mask, "mask", false);
  std::sort(spec.added.begin(), spec.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  spec.unk_token = *names.unk;
  set_bert_template(spec, cls, sep);
}

// Other classes read vocab.txt too, but split words differently.
void check_tokenizer_class(const TokenizerConfig& config) {
  if (!config.json.is_object() || !config.json.contains("tokenizer_class")) return;
  const JsonFields fields(config.json, config.origin, "");
  std::string name = fields.find("tokenizer_class") ? fields.text("tokenizer_class") : "Bert";
  for (std::string_view suffix : {"Fast", "Tokenizer"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  constexpr std::array<std::string_view, 7> kLikeBert = {
      "Bert", "ConvBert", "DistilBert", "Electra", "LayoutLM", "MobileBert", "SqueezeBert"};
  if (std::find(kLikeBert.begin(), kLikeBert.end(), name) == kLikeBert.end()) {
    fail(ErrorKind::kInput, "{}: unsupported tokenizer_class \"{}\" for a vocab.txt", config.origin,
         fields.text("tokenizer_class"));
  }
}

// Names that the configuration does not give, from the older special_tokens_map.json.
void merge_special_tokens_map(const fs::path& folder, TokenizerConfig& config) {
  const fs::path path = folder / "special_tokens_map.json";
  if (!fs::exists(path)) return;
  const Json map = parse_json(strip_bom(read_small_file(path)), path.string());
  if (!map.is_object())
    fail(ErrorKind::kInput, "{}: the document must be an object", path.string());
  if (config.json.is_null()) config.json = Json::object();
  for (const auto& [key, value] : map.items()) {
    if (!config.json.contains(key)) config.json[key] = value;
  }
}

TokenizerConfig read_config(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  TokenizerConfig config{nullptr, path.string()};
  if (fs::exists(path)) {
    config.json = parse_json(strip_bom(read_small_file(path)), path.string());
    JsonFields(config.json, config.origin, "");
  }
  merge_special_tokens_map(folder, config);
  return config;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, std::string_view origin,
                                                const TokenizerConfig& config) {
  WordPieceSpec spec = parse_wordpiece_json(strip_bom(text), origin);
  spec.specials = bert_names();
  spec.specials.unk = spec.unk_token;
  apply_tokenizer_config(config, spec);
  return std::make_unique<WordPieceTokenizer>(std::move(spec), origin);
}

std::unique_ptr<Tokenizer> parse_vocab(std::string_view text, std::string_view origin,
                                       const TokenizerConfig& config) {
  WordPieceSpec spec;
  spec.tokens = parse_vocab_lines(text, origin);
  spec.specials = bert_names();
  check_tokenizer_class(config);
  apply_tokenizer_config(config, spec);
  add_special_tokens(spec, origin);
  return std::make_unique<WordPieceTokenizer>(std::move(spec), origin);
}

std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(std::vector<std::string> vocabulary,
                                                    const NormalizerOptions& options) {
  WordPieceSpec spec;
  spec.tokens = std::move(vocabulary);
  spec.specials = bert_names();
  spec.normalizer = options;
  add_special_tokens(spec, "vocabulary");
  return std::make_unique<WordPieceTokenizer>(std::move(spec), "vocabulary");
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  const fs::path json = folder / "tokenizer.json", vocab = folder / "vocab.txt";
  if (fs::exists(json))
    return parse_tokenizer_json(read_small_file(json), json.string(), read_config(folder));
  if (fs::exists(vocab)) {
    const fs::path added = folder / "added_tokens.json";
    const TokenizerConfig config = read_config(folder);
    if (fs::exists(added) &&
        !(config.json.is_object() && config.json.contains("added_tokens_decoder"))) {
      fail(ErrorKind::kInput,
           "{}: added tokens beside a vocab.txt are read only from tokenizer_config.json",
           added.string());
    }
    return parse_vocab(read_small_file(vocab), vocab.string(), config);
  }
  for (const char* other :
       {"vocab.json", "merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"}) {
    if (!fs::exists(folder / other)) continue;
    fail(ErrorKind::kInput,
         "{}: this kind of tokenizer is not supported yet (supported: WordPiece)",
         (folder / other).string());
  }
  fail(ErrorKind::kInput, "{}: no tokenizer here, expected tokenizer.json or vocab.txt",
       folder.string());
}

}  // namespace snug
