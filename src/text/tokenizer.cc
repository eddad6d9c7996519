#include "text/tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// Names that the configuration does not give, from the older special_tokens_map.json.
void merge_special_tokens_map(const fs::path& folder, TokenizerConfig& config) {
  const fs::path path = folder / "special_tokens_map.json";
  if (!fs::exists(path)) return;
  const Json map = parse_json(strip_byte_order_mark(read_small_file(path)), path.string());
  if (!map.is_object()) {
    fail(ErrorKind::kInput, "{}: the document must be an object", path.string());
  }
  if (config.json.is_null()) config.json = Json::object();
  for (const auto& [key, value] : map.items()) {
    if (!config.json.contains(key)) config.json[key] = value;
  }
}

TokenizerConfig read_config(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  TokenizerConfig config{nullptr, path.string()};
  if (fs::exists(path)) {
    config.json = parse_json(strip_byte_order_mark(read_small_file(path)), path.string());
    JsonFields(config.json, config.origin, "");
  }
  merge_special_tokens_map(folder, config);
  return config;
}

// Beside a plain vocabulary, added tokens count only where their flags are known.
void refuse_bare_added_tokens(const fs::path& folder, const TokenizerConfig& config,
                              const char* vocabulary) {
  const fs::path added = folder / "added_tokens.json";
  if (!fs::exists(added)) return;
  if (config.json.is_object() && config.json.contains("added_tokens_decoder")) return;
  fail(ErrorKind::kInput, "{}: added tokens beside a {} are read only from tokenizer_config.json",
       added.string(), vocabulary);
}

std::unique_ptr<Tokenizer> load_vocab_and_merges(const fs::path& vocab, const fs::path& merges) {
  const fs::path folder = vocab.parent_path();
  for (const fs::path& path : {vocab, merges}) {
    if (fs::exists(path)) continue;
    fail(ErrorKind::kInput, "{}: {} is missing; BPE needs both {} and {}", folder.string(),
         path.filename().string(), vocab.filename().string(), merges.filename().string());
  }
  const TokenizerConfig config = read_config(folder);
  refuse_bare_added_tokens(folder, config, "vocab.json");
  const std::string vocab_text = read_small_file(vocab), merges_text = read_small_file(merges);
  const std::string vocab_origin = vocab.string(), merges_origin = merges.string();
  return parse_vocab_and_merges({vocab_text, vocab_origin}, {merges_text, merges_origin}, config);
}

// By the names that transformers gives, or the only .model there is; empty where there is none.
fs::path find_sentencepiece(const fs::path& folder) {
  for (const char* name :
       {"spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model"}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  std::vector<fs::path> others;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".model") others.push_back(entry.path());
    }
  }
  if (others.size() > 1) {
    std::sort(others.begin(), others.end());
    fail(ErrorKind::kInput, "{}: which SentencePiece model is it, {} or {}?", folder.string(),
         others[0].filename().string(), others[1].filename().string());
  }
  return others.empty() ? fs::path() : others[0];
}

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    bytes += token_bytes(id, bytes.empty() ? TextPlace::kStart : TextPlace::kInside);
  }
  return replace_invalid_utf8(bytes);
}

std::string Tokenizer::token_bytes(int32_t id, TextPlace) const {
  return id >= 0 && id < vocab_size() ? std::string(token(id)) : "";
}

bool Tokenizer::is_special(int32_t) const { return false; }

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  const fs::path json = folder / "tokenizer.json", vocab = folder / "vocab.txt";
  if (fs::exists(json)) {
    return parse_tokenizer_json(read_small_file(json), json.string(), read_config(folder));
  }
  if (fs::exists(vocab)) {
    const TokenizerConfig config = read_config(folder);
    refuse_bare_added_tokens(folder, config, "vocab.txt");
    return parse_vocab(read_small_file(vocab), vocab.string(), config);
  }
  if (fs::exists(folder / "vocab.json") || fs::exists(folder / "merges.txt")) {
    return load_vocab_and_merges(folder / "vocab.json", folder / "merges.txt");
  }
  if (fs::exists(folder / "encoder.json") || fs::exists(folder / "vocab.bpe")) {
    return load_vocab_and_merges(folder / "encoder.json", folder / "vocab.bpe");
  }
  if (const fs::path model = find_sentencepiece(folder); !model.empty()) {
    const TokenizerConfig config = read_config(folder);
    refuse_bare_added_tokens(folder, config, "SentencePiece model");
    return parse_sentencepiece(read_small_file(model), model.string(), config);
  }
  fail(
      ErrorKind::kInput,
      "{}: no tokenizer here, expected tokenizer.json, vocab.txt, vocab.json with merges.txt, or a "
      "SentencePiece .model",
      folder.string());
}

}  // namespace snug
