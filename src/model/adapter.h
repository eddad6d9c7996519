// LoRA adapters as PEFT stores them: adapter_config.json and adapter_model.safetensors. Read, they
// are added to the weights of the model they were trained beside, element by element, so that
// everything downstream sees plain weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.h"
#include "model/tuning.h"
#include "model/weights.h"

namespace snug {

class Model;
class WeightFolder;

bool is_adapter_folder(const std::filesystem::path& folder);

class AdapterFolder {
 public:
  // Errors are kInput: files that are missing, broken, or ask for something that is not plain LoRA.
  explicit AdapterFolder(const std::filesystem::path& folder);

  // Where the model lies that it was trained beside; a relative path is looked for beside the
  // folder too.
  const std::filesystem::path& base() const { return base_; }
  const LoraSpec& spec() const { return spec_; }

  const SafetensorsFile& file() const { return file_; }
  // Tensors that replace the model's (heads), under the model's names.
  const std::vector<TensorEntry>& replacements() const { return replacements_; }

  // values, which are elements [first, ...) of the model's tensor `weight`, += scale * b a. Others
  // are left as they are.
  void add_to(const TensorEntry& weight, uint64_t first, std::span<float> values) const;

 private:
  struct Pair {
    std::string weight;  // name in the model's files
    const TensorEntry *a = nullptr, *b = nullptr;
  };
  const Pair* find(std::string_view weight) const;

  LoraSpec spec_;
  bool in_out_ = false;  // weights lie as [in, out]
  std::filesystem::path base_;
  SafetensorsFile file_;
  std::vector<Pair> pairs_;
  std::vector<TensorEntry> replacements_;
};

// adapter_config.json for the adapters of `model`, which were trained beside the weights in `base`.
std::string describe_adapter(const Model& model, const std::filesystem::path& base);

// Adds to what save_adapter() has written the frozen tensors that `base`, the model's files, has
// not, and what PEFT wants of a module of which any part is trained: all its tensors, and where a
// head is tied to the table of words, that table.
void complete_adapter(const std::filesystem::path& folder, const Model& model,
                      const ParameterMemory& memory, const WeightFolder& base);

inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
inline constexpr const char* kAdapterConfig = "adapter_config.json";
// In front of the names of the model's tensors in adapter files.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

}  // namespace snug
