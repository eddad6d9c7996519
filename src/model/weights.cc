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
        make_new = parameter.is_head;
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
    if (make_new) result.report.made_new.push_back(parameter.name);
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
  if (parameter.init != Init::kNormal) {
    std::fill(values.begin(), values.end(), parameter.init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  SNUG_CHECK(first % 2 == 0);
  uint64_t name_hash = 0;
  for (char c : parameter.name) name_hash = mix64(name_hash ^ uint8_t(c));
  const uint64_t key = mix64(options.seed) ^ name_hash;
  for (size_t i = 0; i < values.size(); i += 2) {  // Box and Muller: two draws, two normal values
    const uint64_t at = first + i;
    const auto draw = philox({uint32_t(at), uint32_t(at >> 32), 0, 0}, {uint32_t(key), uint32_t(key >> 32)});
    const double u = (double(draw[0]) + 0.5) * 0x1p-32, angle = 2 * std::numbers::pi * double(draw[1]) * 0x1p-32;
    const double radius = options.initializer_range * parameter.init_scale * std::sqrt(-2 * std::log(u));
    values[i] = float(radius * std::cos(angle));
    if (i + 1 < values.size()) values[i + 1] = float(radius * std::sin(angle));
  }
}

void save_weights(const std::filesystem::path& folder, const Model& model, const ParameterMemory& memory,
                  const WeightFolder* originals) {
  const ParameterTable& table = model.parameters();
  std::vector<TensorEntry> entries;
  for (const Parameter& parameter : table) {
    for (const ParameterPart& part : parameter.parts) {
      TensorEntry entry;
      entry.name = part.name;
      entry.shape = expected_shape(parameter, part);
      entries.push_back(std::move(entry));
    }
  }
  SafetensorsWriter writer(folder / "model.safetensors", std::move(entries));
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < table.size(); ++i) {
    const Block block = memory(i);
    size_t before = 0;
    for (const ParameterPart& part : table[i].parts) {
      const size_t count = size_t(part.rows * (table[i].is_vector ? 1 : table[i].cols));
      const TensorEntry* const original =
          originals != nullptr && !table[i].trained ? find_tensor(*originals, part.name, model.weight_names().prefix) : nullptr;
      in_pieces(count, std::span(buffer), [&](size_t first, std::span<float> piece) {
        if (original != nullptr) {
          originals->read_as_f32(original->name, first, piece);
        } else {
          block.read((before + first) * sizeof(float), std::as_writable_bytes(piece));
        }
        writer.write(part.name, piece);
      });
      before += count;
    }
  }
  writer.commit();
}

}  // namespace snug
