#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "core/error.h"
#include "core/philox.h"
#include "core/progress.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/adapter.h"
#include "model/weight_files.h"

namespace snug {
namespace {

constexpr size_t kListed = 8;  // names in one error message

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  if (const size_t at = text.rfind(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

// The names a tensor may have: as transformers writes it, without the prefix (a bare model), and with the names that
// norms had in TensorFlow's BERT.
const TensorEntry* find_tensor(const WeightFolder& files, const std::string& name, const std::string& prefix) {
  std::vector<std::string> spellings = {name};
  if (name.starts_with(prefix)) spellings.push_back(name.substr(prefix.size()));
  if (name.find("LayerNorm") != std::string::npos) {
    for (size_t i = 0, count = spellings.size(); i < count; ++i) {
      spellings.push_back(replaced(replaced(spellings[i], ".weight", ".gamma"), ".bias", ".beta"));
    }
  }
  for (const std::string& spelling : spellings) {
    if (const TensorEntry* found = files.find(spelling)) return found;
  }
  return nullptr;
}

std::vector<int64_t> expected_shape(const Parameter& parameter, const ParameterPart& part) {
  if (parameter.is_vector) return {part.rows};
  return {part.rows, parameter.cols};
}

// Tensors that are not weights of the layers: other heads, and buffers that old versions stored.
bool may_be_unused(std::string_view name, const WeightNames& names) {
  if (name.starts_with(names.prefix)) name.remove_prefix(names.prefix.size());
  const bool own = std::ranges::any_of(names.own, [&](const std::string& part) { return name.starts_with(part); });
  return !own || std::ranges::any_of(names.not_weights, [&](const std::string& part) { return name.ends_with(part); });
}

std::string listed(const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const size_t shown = std::min(names.size(), kListed);
  std::string text = fmt::format("\n  {}: {}", what, fmt::join(names.begin(), names.begin() + ptrdiff_t(shown), ", "));
  if (names.size() > shown) text += fmt::format(", and {} more", names.size() - shown);
  return text;
}

struct Match {
  LoadReport report;
  std::vector<bool> make_new;                                 // by parameter
  std::vector<std::vector<const TensorEntry*>> tensors;       // by parameter, by part
};

Match match(const WeightFolder& files, const Model& model, const LoadOptions& options) {
  Match result;
  std::vector<std::string> missing, mismatched, unexpected;
  std::set<const TensorEntry*> used;
  bool head_differs = false;
  for (const Parameter& parameter : model.parameters()) {
    bool make_new = false;
    auto& tensors = result.tensors.emplace_back();
    for (const ParameterPart& part : parameter.parts) {
      const TensorEntry* tensor = find_tensor(files, part.name, model.weight_names().prefix);
      tensors.push_back(tensor);
      if (tensor == nullptr) {
        make_new = parameter.is_head || parameter.is_adapter;
        if (!make_new) missing.push_back(part.name);
        continue;
      }
      used.insert(tensor);
      const auto expected = expected_shape(parameter, part);
      if (tensor->shape == expected) continue;
      make_new = parameter.is_head && options.ignore_mismatched_sizes;
      head_differs |= parameter.is_head;
      if (!make_new) {
        mismatched.push_back(fmt::format("{} is {}, expected {}", tensor->name, format_shape(tensor->shape),
                                         format_shape(expected)));
      }
    }
    result.make_new.push_back(make_new);
    if (make_new && !parameter.is_adapter) result.report.made_new.push_back(parameter.name);
  }
  for (const std::string_view name : files.names()) {
    if (used.count(files.find(name)) > 0) continue;
    (may_be_unused(name, model.weight_names()) ? result.report.unused : unexpected).emplace_back(name);
  }
  if (!missing.empty() || !mismatched.empty() || !unexpected.empty()) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: the weights do not match config.json{}{}{}", files.folder().string(),
                            listed("missing", missing), listed("of another shape", mismatched),
                            listed("not in this model", unexpected)),
                head_differs ? "--ignore-mismatched-sizes makes a new head" : "");
  }
  return result;
}

}  // namespace

LoadReport check_weights(const WeightFolder& files, const Model& model, const LoadOptions& options) {
  return match(files, model, options).report;
}

LoadReport load_weights(const WeightFolder& files, const Model& model, const ParameterMemory& memory,
                        const LoadOptions& options) {
  Match found = match(files, model, options);
  const ParameterTable& table = model.parameters();
  Progress progress("loading weights", table.size(), "tensors");
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < table.size(); ++i) {
    const Block block = memory(i);
    if (found.make_new[i]) {
      in_pieces(size_t(table[i].size()), std::span(buffer), [&](size_t first, std::span<float> piece) {
        initialize(table[i], first, piece, options);
        block.write(first * sizeof(float), std::as_bytes(piece));
      });
    } else {
      size_t before = 0;  // elements of earlier parts
      for (const TensorEntry* tensor : found.tensors[i]) {
        in_pieces(tensor->elements(), std::span(buffer), [&](size_t first, std::span<float> piece) {
          files.read_as_f32(tensor->name, first, piece);
          block.write((before + first) * sizeof(float), std::as_bytes(piece));
        });
        before += tensor->elements();
      }
    }
    progress.update(i + 1);
  }
  return found.report;
}

void initialize(const Parameter& parameter, size_t first, std::span<float> values, const LoadOptions& options) {
  if (parameter.init == Init::kZeros || parameter.init == Init::kOnes) {
    std::fill(values.begin(), values.end(), parameter.init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  SNUG_CHECK(first % 2 == 0);
  uint64_t name_hash = 0;
  for (char c : parameter.name) name_hash = mix64(name_hash ^ uint8_t(c));
  const uint64_t key = mix64(options.seed) ^ name_hash;
  for (size_t i = 0; i < values.size(); i += 2) {  // two draws, two values
    const uint64_t at = first + i;
    const auto draw = philox({uint32_t(at), uint32_t(at >> 32), 0, 0}, {uint32_t(key), uint32_t(key >> 32)});
    if (parameter.init == Init::kUniform) {
      const double bound = 1.0 / std::sqrt(double(parameter.cols));
      for (size_t j = 0; j < std::min<size_t>(2, values.size() - i); ++j) {
        values[i + j] = float(bound * (2.0 * (double(draw[j]) + 0.5) * 0x1p-32 - 1.0));
      }
      continue;
    }
    // Box and Muller.
    const double u = (double(draw[0]) + 0.5) * 0x1p-32, angle = 2 * std::numbers::pi * double(draw[1]) * 0x1p-32;
    const double radius = options.initializer_range * parameter.init_scale * std::sqrt(-2 * std::log(u));
    values[i] = float(radius * std::cos(angle));
    if (i + 1 < values.size()) values[i + 1] = float(radius * std::sin(angle));
  }
}

namespace {

// Reads elements [first, ...) of a part of parameter i; `before`: elements of its earlier parts.
using ReadPart = std::function<void(size_t i, const ParameterPart& part, size_t before, size_t first, std::span<float> piece)>;

// Those of a model's parameters that `wanted` names, under the names that it gives; empty: left out.
void write_tensors(const std::filesystem::path& path, const Model& model,
                   const std::function<std::string(const Parameter&, const ParameterPart&)>& name_of, const ReadPart& read) {
  const ParameterTable& table = model.parameters();
  std::vector<TensorEntry> entries;
  for (const Parameter& parameter : table) {
    for (const ParameterPart& part : parameter.parts) {
      TensorEntry entry;
      entry.name = name_of(parameter, part);
      entry.shape = expected_shape(parameter, part);
      if (!entry.name.empty()) entries.push_back(std::move(entry));
    }
  }
  SafetensorsWriter writer(path, std::move(entries));
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < table.size(); ++i) {
    size_t before = 0;
    for (const ParameterPart& part : table[i].parts) {
      const std::string name = name_of(table[i], part);
      const size_t count = size_t(part.rows * (table[i].is_vector ? 1 : table[i].cols));
      in_pieces(name.empty() ? 0 : count, std::span(buffer), [&](size_t first, std::span<float> piece) {
        read(i, part, before, first, piece);
        writer.write(name, piece);
      });
      before += count;
    }
  }
  writer.commit();
}

std::string file_name(const Parameter& parameter, const ParameterPart& part) { return parameter.is_adapter ? "" : part.name; }

std::string adapter_name(const Parameter& parameter, const ParameterPart& part) {
  if (!parameter.trained) return "";
  return parameter.is_adapter ? part.name : std::string(kAdapterPrefix) + part.name;
}

}  // namespace

void save_weights(const std::filesystem::path& folder, const Model& model, const ParameterMemory& memory,
                  const WeightFolder* originals) {
  write_tensors(folder / "model.safetensors", model, file_name,
                [&](size_t i, const ParameterPart& part, size_t before, size_t first, std::span<float> piece) {
                  const bool kept = originals != nullptr && !model.parameters()[i].trained;
                  const TensorEntry* const original =
                      kept ? find_tensor(*originals, part.name, model.weight_names().prefix) : nullptr;
                  if (original != nullptr) return originals->read_as_f32(original->name, first, piece);
                  memory(i).read((before + first) * sizeof(float), std::as_writable_bytes(piece));
                });
}

void copy_weights(const std::filesystem::path& folder, const Model& model, const WeightFolder& from) {
  check_weights(from, model, {});
  write_tensors(folder / "model.safetensors", model, file_name,
                [&](size_t, const ParameterPart& part, size_t, size_t first, std::span<float> piece) {
                  const TensorEntry* const tensor = find_tensor(from, part.name, model.weight_names().prefix);
                  if (tensor == nullptr) fail(ErrorKind::kInput, "{}: has no {}", from.folder().string(), part.name);
                  from.read_as_f32(tensor->name, first, piece);
                });
}

void save_adapter(const std::filesystem::path& folder, const Model& model, const ParameterMemory& memory) {
  write_tensors(folder / kAdapterWeights, model, adapter_name,
                [&](size_t i, const ParameterPart&, size_t before, size_t first, std::span<float> piece) {
                  memory(i).read((before + first) * sizeof(float), std::as_writable_bytes(piece));
                });
}

void load_adapter(const std::filesystem::path& folder, const Model& model, const ParameterMemory& memory) {
  const SafetensorsFile file(folder / kAdapterWeights);
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    size_t before = 0;
    for (const ParameterPart& part : parameter.parts) {
      const std::string name = adapter_name(parameter, part);
      if (name.empty()) continue;
      const TensorEntry* const tensor = file.find(name);
      if (tensor == nullptr || tensor->shape != expected_shape(parameter, part)) {
        fail(ErrorKind::kInput, "{}: has no {} of the expected shape", file.path().string(), name);
      }
      in_pieces(tensor->elements(), std::span(buffer), [&](size_t first, std::span<float> piece) {
        file.read_as_f32(*tensor, first, piece);
        memory(i).write((before + first) * sizeof(float), std::as_bytes(piece));
      });
      before += tensor->elements();
    }
  }
}

}  // namespace snug
