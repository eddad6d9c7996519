#include "train/model_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "model/adapter.h"

namespace snug {

ModelFolder open_model_folder(const std::filesystem::path& path, std::string_view flag) {
  if (!std::filesystem::is_directory(path)) {
    throw Error(ErrorKind::kInput, fmt::format("{}: no such folder", path.string()),
                fmt::format("{} takes a Hugging Face model folder: config.json, model.safetensors and tokenizer files", flag));
  }
  ModelFolder folder;
  folder.path = path;
  // Adapters alone: the rest lies with the model they belong to.
  const bool bare = is_adapter_folder(path) && !std::filesystem::exists(path / "config.json");
  const std::filesystem::path described = bare ? AdapterFolder(path).base() : path;
  const auto config_path = described / "config.json";
  folder.config = parse_config(read_small_file(config_path), config_path.string());
  folder.tokenizer = load_tokenizer(described);
  if (folder.tokenizer->vocab_size() > folder.config.vocab_size) {
    fail(ErrorKind::kInput, "{}: the tokenizer has {} tokens, but config.json says vocab_size {}; do they belong together?",
         path.string(), folder.tokenizer->vocab_size(), folder.config.vocab_size);
  }
  return folder;
}

LabelSet ModelFolder::trained_labels() const {
  const bool classifier = head_of(config) == Head::kClassifier;
  const bool placeholders = std::all_of(config.labels.begin(), config.labels.end(),
                                        [](const std::string& name) { return name.rfind("LABEL_", 0) == 0; });
  if (!classifier || placeholders) return {};
  return {config.labels};
}

int32_t ModelFolder::end_of_text() const {
  if (config.eos_token_id) return int32_t(*config.eos_token_id);
  return tokenizer->special_ids().eos;
}

void save_description(const std::filesystem::path& path, const ModelConfig& config, Head head, const Tokenizer& tokenizer) {
  tokenizer.save(path);
  write_file_atomically(path / "config.json", to_json(config, head));
}

}  // namespace snug
