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
#include "model/adapter.h"
#include "model/model.h"
#include "model/quantized_weights.h"
#include "model/safetensors.h"
#include "model/weight_files.h"

namespace snug {
namespace {

constexpr size_t kListed = 8;  // names in one error message

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  if (const size_t at = text.rfind(from); at != std::string::npos) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// The names a tensor may have: as transformers writes it, without the prefix (a bare model), and
// with the names that norms had in TensorFlow's BERT.
const TensorEntry* find_tensor(const WeightFolder& files, const std::string& name,
                               const std::string& prefix) {
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

// What int8 tensors are besides: channel by channel, and with scales.
std::string quantized_mismatch(const WeightFolder& files, const TensorEntry& tensor,
                               const Parameter& parameter, const ParameterPart& part) {
  if (!parameter.quantized) return fmt::format("{} is int8, expected floating point", tensor.name);
  const int64_t channels = parameter.is_in_out ? parameter.cols : part.rows;
  const std::vector<int64_t> expected = {channels, parameter.inputs()};
  if (tensor.shape != expected) {
    return fmt::format("{} is int8 {}, expected {}", tensor.name, format_shape(tensor.shape),
                       format_shape(expected));
  }
  const TensorEntry* scales = files.find(scale_name(tensor.name));
  if (scales == nullptr) {
    return fmt::format("{} is int8, but {} is missing", tensor.name, scale_name(tensor.name));
  }
  if (!is_float(scales->dtype) || scales->shape != std::vector<int64_t>{channels}) {
    return fmt::format("{} is {} {}, expected fp32 {}", scales->name, dtype_name(scales->dtype),
                       format_shape(scales->shape), format_shape(std::vector<int64_t>{channels}));
  }
  return {};
}

// Tensors that are not weights of the layers: other heads, and buffers that old versions stored.
bool may_be_unused(std::string_view name, const WeightNames& names) {
  if (name.starts_with(names.prefix)) name.remove_prefix(names.prefix.size());
  const bool own = std::ranges::any_of(
      names.own, [&](const std::string& part) { return name.starts_with(part); });
  return !own || std::ranges::any_of(names.not_weights,
                                     [&](const std::string& part) { return name.ends_with(part); });
}

std::string listed(const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const size_t shown = std::min(names.size(), kListed);
  std::string text = fmt::format("\n  {}: {}", what,
                                 fmt::join(names.begin(), names.begin() + ptrdiff_t(shown), ", "));
  if (names.size() > shown) text += fmt::format(", and {} more", names.size() - shown);
  return text;
}

struct Match {
  LoadReport report;
  std::vector<bool> make_new;                            // by parameter
  std::vector<std::vector<const TensorEntry*>> tensors;  // by parameter, by part
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
        make_new = (parameter.is_head && !parameter.quantized) || parameter.is_adapter;
        if (!make_new) missing.push_back(part.name);
        continue;
      }
      used.insert(tensor);
      if (tensor->dtype == DType::kI8) {
        const std::string mismatch = quantized_mismatch(files, *tensor, parameter, part);
        if (!mismatch.empty()) mismatched.push_back(mismatch);
        used.insert(files.find(scale_name(tensor->name)));
        continue;
      }
      const auto expected = expected_shape(parameter, part);
      if (tensor->shape == expected) continue;
      make_new = parameter.is_head && options.ignore_mismatched_sizes;
      head_differs |= parameter.is_head;
      if (!make_new) {
        mismatched.push_back(fmt::format("{} is {}, expected {}", tensor->name,
                                         format_shape(tensor->shape), format_shape(expected)));
      }
    }
    result.make_new.push_back(make_new);
    if (make_new && !parameter.is_adapter) result.report.made_new.push_back(parameter.name);
  }
  for (const std::string_view name : files.names()) {
    if (used.count(files.find(name)) > 0) continue;
    (may_be_unused(name, model.weight_names()) ? result.report.unused : unexpected)
        .emplace_back(name);
  }
  if (!missing.empty() || !mismatched.empty() || !unexpected.empty()) {
    throw Error(
        ErrorKind::kInput,
        fmt::format("{}: the weights do not match config.json{}{}{}", files.folder().string(),
                    listed("missing", missing), listed("of another shape", mismatched),
                    listed("not in this model", unexpected)),
        head_differs ? "--ignore-mismatched-sizes makes a new head" : "");
  }
  return result;
}

// An int8 parameter, from int8 tensors or quantised on the way.
void load_quantized(const WeightFolder& files, const Parameter& parameter,
                    const std::vector<const TensorEntry*>& tensors, const Block& block) {
  const auto inputs = size_t(parameter.inputs());
  size_t before = 0;  // channels of earlier parts
  const auto write = [&](size_t first, std::span<const std::byte> values,
                         std::span<const float> scales) {
    block.write((before + first) * inputs, values);
    block.write(parameter.scales_offset() + (before + first) * sizeof(float),
                std::as_bytes(scales));
  };
  for (size_t n = 0; n < tensors.size(); ++n) {
    const TensorEntry& tensor = *tensors[n];
    const auto channels = size_t(parameter.is_in_out ? parameter.cols : parameter.parts[n].rows);
    if (tensor.dtype == DType::kI8) {
      const size_t most = std::max<size_t>(1, kPieceBytes / inputs);
      std::vector<std::byte> values(most * inputs);
      std::vector<float> scales(most);
      in_pieces(channels, std::span(scales), [&](size_t first, std::span<float> piece) {
        const auto bytes = std::span(values).first(piece.size() * inputs);
        files.read_bytes(tensor.name, first * inputs, bytes);
        files.read_as_f32(scale_name(tensor.name), first, piece);
        write(first, bytes, piece);
      });
    } else {
      const auto read = [&](uint64_t first, std::span<float> values) {
        files.read_as_f32(tensor.name, first, values);
      };
      quantize_matrix({int64_t(channels), int64_t(inputs), parameter.is_in_out, read},
                      [&](const QuantizedChannels& some) {
                        write(size_t(some.first), std::as_bytes(some.values), some.scales);
                      });
    }
    before += channels;
  }
}

}  // namespace

std::vector<std::vector<const TensorEntry*>> find_parts(const WeightFolder& files,
                                                        const Model& model) {
  return match(files, model, {}).tensors;
}

LoadReport check_weights(const WeightFolder& files, const Model& model,
                         const LoadOptions& options) {
  return match(files, model, options).report;
}

LoadReport load_weights(const WeightFolder& files, const Model& model,
                        const ParameterMemory& memory, const LoadOptions& options) {
  Match found = match(files, model, options);
  const ParameterTable& table = model.parameters();
  Progress progress("loading weights", table.size(), "tensors");
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < table.size(); ++i) {
    const Block block = memory(i);
    if (found.make_new[i]) {
      in_pieces(size_t(table[i].size()), std::span(buffer),
                [&](size_t first, std::span<float> piece) {
                  initialize(table[i], first, piece, options);
                  block.write(first * sizeof(float), std::as_bytes(piece));
                });
    } else if (table[i].quantized) {
      load_quantized(files, table[i], found.tensors[i], block);
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

void initialize(const Parameter& parameter, size_t first, std::span<float> values,
                const LoadOptions& options) {
  if (parameter.init == Init::kZeros || parameter.init == Init::kOnes) {
    std::fill(values.begin(), values.end(), parameter.init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  SNUG_CHECK(first % 2 == 0);
  uint64_t name_hash = 0;
  for (char c : parameter.name) name_hash = mix64(name_hash ^ uint8_t(c));
  const uint64_t key = mix64(options.seed) ^ name_hash;
#pragma omp parallel for schedule(static) if (values.size() > 4096)
  for (size_t i = 0; i < values.size(); i += 2) {  // two draws, two values
    const uint64_t at = first + i;
    const auto draw =
        philox({uint32_t(at), uint32_t(at >> 32), 0, 0}, {uint32_t(key), uint32_t(key >> 32)});
    if (parameter.init == Init::kUniform) {
      const double bound = 1.0 / std::sqrt(double(parameter.cols));
      for (size_t j = 0; j < std::min<size_t>(2, values.size() - i); ++j) {
        values[i + j] = float(bound * (2.0 * (double(draw[j]) + 0.5) * 0x1p-32 - 1.0));
      }
      continue;
    }
    // Box and Muller.
    const double u = (double(draw[0]) + 0.5) * 0x1p-32,
                 angle = 2 * std::numbers::pi * double(draw[1]) * 0x1p-32;
    const double radius =
        options.initializer_range * parameter.init_scale * std::sqrt(-2 * std::log(u));
    values[i] = float(radius * std::cos(angle));
    if (i + 1 < values.size()) values[i + 1] = float(radius * std::sin(angle));
  }
}

namespace {

// Int8 tensors of another folder under the names they are saved by, and their scales, which come
// first: wide types before narrow ones keep all aligned.
class QuantizedTensors {
 public:
  void add(const std::string& name, const TensorEntry& tensor, const WeightFolder& files) {
    files_ = &files;
    scales_.push_back({scale_name(name), files.find(scale_name(tensor.name))});
    values_.push_back({name, &tensor});
  }
  void declare(std::vector<TensorEntry>& entries) const {
    for (const auto* list : {&scales_, &values_}) {
      for (const auto& [name, tensor] : *list) {
        entries.push_back({name, tensor->dtype, tensor->shape});
      }
    }
  }
  void write(SafetensorsWriter& writer) const {
    std::vector<std::byte> buffer(kPieceBytes);
    for (const auto* list : {&scales_, &values_}) {
      for (const auto& [name, tensor] : *list) {
        in_pieces(tensor->bytes(), std::span(buffer),
                  [&](size_t first, std::span<std::byte> piece) {
                    files_->read_bytes(tensor->name, first, piece);
                    writer.write_bytes(name, piece);
                  });
      }
    }
  }

 private:
  const WeightFolder* files_ = nullptr;
  std::vector<std::pair<std::string, const TensorEntry*>> scales_, values_;
};

// Reads elements [first, ...) of a part of parameter i; `before`: elements of its earlier parts.
using ReadPart = std::function<void(size_t i, const ParameterPart& part, size_t before,
                                    size_t first, std::span<float> piece)>;

// Those of a model's parameters that `wanted` names, under the names that it gives (empty: left
// out), and int8 tensors.
void write_tensors(
    const std::filesystem::path& path, const Model& model,
    const std::function<std::string(const Parameter&, const ParameterPart&)>& name_of,
    const ReadPart& read, const QuantizedTensors& quantized = {}) {
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
  quantized.declare(entries);
  SafetensorsWriter writer(path, std::move(entries));
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < table.size(); ++i) {
    size_t before = 0;
    for (const ParameterPart& part : table[i].parts) {
      const std::string name = name_of(table[i], part);
      const size_t count = size_t(part.rows * (table[i].is_vector ? 1 : table[i].cols));
      in_pieces(name.empty() ? 0 : count, std::span(buffer),
                [&](size_t first, std::span<float> piece) {
                  read(i, part, before, first, piece);
                  writer.write(name, piece);
                });
      before += count;
    }
  }
  quantized.write(writer);
  writer.commit();
}

std::string file_name(const Parameter& parameter, const ParameterPart& part) {
  return parameter.is_adapter ? "" : part.name;
}

std::string adapter_name(const Parameter& parameter, const ParameterPart& part) {
  if (!parameter.trained) return "";
  return parameter.is_adapter ? part.name : std::string(kAdapterPrefix) + part.name;
}

}  // namespace

void save_weights(const std::filesystem::path& folder, const Model& model,
                  const ParameterMemory& memory, const WeightFolder* originals) {
  const auto original_of = [&](const Parameter& parameter, const ParameterPart& part) {
    return originals != nullptr && !parameter.trained
               ? find_tensor(*originals, part.name, model.weight_names().prefix)
               : nullptr;
  };
  QuantizedTensors quantized;
  const auto name_of = [&](const Parameter& parameter, const ParameterPart& part) {
    const TensorEntry* const original = original_of(parameter, part);
    return original != nullptr && original->dtype == DType::kI8 ? "" : file_name(parameter, part);
  };
  for (const Parameter& parameter : model.parameters()) {
    for (const ParameterPart& part : parameter.parts) {
      const TensorEntry* const original = original_of(parameter, part);
      if (original != nullptr && original->dtype == DType::kI8) {
        quantized.add(part.name, *original, *originals);
      }
    }
  }
  write_tensors(
      folder / "model.safetensors", model, name_of,
      [&](size_t i, const ParameterPart& part, size_t before, size_t first,
          std::span<float> piece) {
        const TensorEntry* const original = original_of(model.parameters()[i], part);
        if (original != nullptr) return originals->read_as_f32(original->name, first, piece);
        memory(i).read((before + first) * sizeof(float), std::as_writable_bytes(piece));
      },
      quantized);
}

void copy_weights(const std::filesystem::path& folder, const Model& model,
                  const WeightFolder& from) {
  check_weights(from, model, {});
  write_tensors(
      folder / "model.safetensors", model, file_name,
      [&](size_t, const ParameterPart& part, size_t, size_t first, std::span<float> piece) {
        const TensorEntry* const tensor = find_tensor(from, part.name, model.weight_names().prefix);
        if (tensor == nullptr) {
          fail(ErrorKind::kInput, "{}: has no {}", from.folder().string(), part.name);
        }
        from.read_as_f32(tensor->name, first, piece);
      });
}

void save_adapter(const std::filesystem::path& folder, const Model& model,
                  const ParameterMemory& memory) {
  write_tensors(
      folder / kAdapterWeights, model, adapter_name,
      [&](size_t i, const ParameterPart&, size_t before, size_t first, std::span<float> piece) {
        memory(i).read((before + first) * sizeof(float), std::as_writable_bytes(piece));
      });
}

void load_adapter(const std::filesystem::path& folder, const Model& model,
                  const ParameterMemory& memory) {
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
