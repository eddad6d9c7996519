#include "train/model_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "model/adapter.h"

namespace snug {
namespace {

// Adapters alone: the rest lies with the model they belong to.
std::filesystem::path described_by(const std::filesystem::path& path) {
  const bool bare = is_adapter_folder(path) && !std::filesystem::exists(path / "config.json");
  return bare ? AdapterFolder(path).base() : path;
}

// Texts are stored as a first part of type 0 and a second of type 1, and each type needs its row in
// the model.
void check_type_ids(const Tokenizer& tokenizer, const ModelConfig& config,
                    const std::string& path) {
  if (config.type_vocab_size == 0) return;
  Encoding encoding;
  for (const std::optional<std::string_view> pair :
       {std::optional<std::string_view>(), std::optional<std::string_view>("b")}) {
    tokenizer.encode("a", pair, {}, encoding);
    const int32_t highest = encoding.type_ids.empty() ? 0 : std::ranges::max(encoding.type_ids);
    if (highest < config.type_vocab_size && highest <= 1 &&
        std::ranges::is_sorted(encoding.type_ids)) {
      continue;
    }
    fail(ErrorKind::kInput,
         "{}: the tokenizer gives texts the types {}, but the model knows {} of them, in order; do "
         "they belong together?",
         path, fmt::join(encoding.type_ids, " "), std::min<int64_t>(config.type_vocab_size, 2));
  }
}

// BERT's tokenizer gives token types, which DistilBERT's forward() in transformers does not take.
void leave_out_token_types(const std::filesystem::path& path) {
  Json json = parse_json(read_small_file(path), path.string());
  json["model_input_names"] = {"input_ids", "attention_mask"};
  write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace

ModelConfig read_config(const std::filesystem::path& folder) {
  return load_config(described_by(folder));
}

ModelFolder open_model_folder(const std::filesystem::path& path, std::string_view flag) {
  if (!std::filesystem::is_directory(path)) {
    throw Error(ErrorKind::kInput, fmt::format("{}: no such folder", path.string()),
                fmt::format("{} takes a model folder: config.json, weights (model.safetensors, "
                            "pytorch_model.bin or bert_model.ckpt) and tokenizer files",
                            flag));
  }
  ModelFolder folder;
  folder.path = path;
  folder.config = read_config(path);
  folder.tokenizer = load_tokenizer(described_by(path));
  if (folder.tokenizer->vocab_size() > folder.config.vocab_size) {
    fail(ErrorKind::kInput,
         "{}: the tokenizer has {} tokens, but config.json says vocab_size {}; do they belong "
         "together?",
         path.string(), folder.tokenizer->vocab_size(), folder.config.vocab_size);
  }
  check_type_ids(*folder.tokenizer, folder.config, path.string());
  // A tokenizer's tables for this thread are there from the first word on. Plans count them, so
  // they are there from the start, whether or not this run tokenizes before it is planned.
  Encoding word;
  folder.tokenizer->encode("snug", std::nullopt, {}, word);
  return folder;
}

LabelSet ModelFolder::trained_labels(Head head) const {
  const bool placeholders =
      std::all_of(config.labels.begin(), config.labels.end(),
                  [](const std::string& name) { return name.rfind("LABEL_", 0) == 0; });
  if (head_of(config) != head || placeholders) return {};
  return {config.labels};
}

int32_t ModelFolder::end_of_text() const {
  if (config.eos_token_id) return int32_t(*config.eos_token_id);
  return tokenizer->special_ids().eos;
}

GenerationConfig ModelFolder::generation_config() const {
  return read_generation_config(described_by(path));
}

void save_description(const std::filesystem::path& path, const ModelConfig& config, Head head,
                      const Tokenizer& tokenizer, const std::filesystem::path& from) {
  tokenizer.save(path);
  if (config.family == Family::kDistilBert) leave_out_token_types(path / "tokenizer_config.json");
  if (head == Head::kCausalLm && !from.empty()) copy_generation_config(described_by(from), path);
  write_file_atomically(path / "config.json", to_json(config, head));
}

}  // namespace snug
