// Weights between files and the arena, guided by the parameter table: streamed through a small
// buffer, converted on the way, never held twice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"
#include "model/parameters.h"

namespace snug {

class Model;
class WeightFolder;
struct TensorEntry;

// Where parameter i lies: as fp32, or int8 with its scales where it is quantised.
using ParameterMemory = std::function<Block(size_t parameter)>;

struct LoadOptions {
  uint64_t seed = 42;  // of parameters that are made new
  double initializer_range = 0.02;
  bool ignore_mismatched_sizes = false;  // a head of another size is made new instead of refused
};

struct LoadReport {
  std::vector<std::string> made_new;  // head parameters the files do not have
  std::vector<std::string> unused;    // tensors of the files that this model has no place for
};

// Accepts names with and without the model's prefix, and the old gamma/beta names of norms.
// Missing, extra and mismatched tensors of the layers are one error (kInput) that lists them.
LoadReport load_weights(const WeightFolder& files, const Model& model,
                        const ParameterMemory& memory, const LoadOptions& options);

// The same checks from the files' headers alone, before any memory is taken.
LoadReport check_weights(const WeightFolder& files, const Model& model, const LoadOptions& options);

// The tensors of the files by parameter and part, checked in the same way; null where the files
// have none.
std::vector<std::vector<const TensorEntry*>> find_parts(const WeightFolder& files,
                                                        const Model& model);

// Elements [first, first + values.size()) of a parameter as a fresh model has it: a pure function
// of (seed, name, element). `first` is even.
void initialize(const Parameter& parameter, size_t first, std::span<float> values,
                const LoadOptions& options);

// Writes model.safetensors under the Hugging Face names. What is not trained comes from `originals`
// where they have it: in memory it may have been rounded. Int8 tensors of theirs stay int8.
void save_weights(const std::filesystem::path& folder, const Model& model,
                  const ParameterMemory& memory, const WeightFolder* originals = nullptr);

// model.safetensors for `model` out of another folder's files; an adapter folder's come out added
// up.
void copy_weights(const std::filesystem::path& folder, const Model& model,
                  const WeightFolder& from);

// What a model with adapters has trained, in PEFT's file, and back.
void save_adapter(const std::filesystem::path& folder, const Model& model,
                  const ParameterMemory& memory);
void load_adapter(const std::filesystem::path& folder, const Model& model,
                  const ParameterMemory& memory);

}  // namespace snug
