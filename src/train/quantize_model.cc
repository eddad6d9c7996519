// `snug quantize`: a model folder whose large matrices are int8. Tensors stream from file to file;
// what is not quantised (biases, norms, positions, heads, tensors that snug does not know) stays as
// it is.
#include <fmt/format.h>

#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "model/quantized_weights.h"
#include "model/weight_files.h"
#include "snug/snug.h"
#include "train/model_folder.h"
#include "train/run_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

struct Matrix {
  const TensorEntry* tensor;
  int64_t channels, inputs;
  bool in_out;
};

struct Sorted {
  std::vector<Matrix> matrices;
  std::vector<const TensorEntry*> others;  // taken over as they are
};

Sorted sort_tensors(const WeightFolder& files, const Model& model, const ModelConfig& config) {
  Sorted sorted;
  std::set<const TensorEntry*> quantized, known;
  const auto tensors = find_parts(files, model);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    known.insert(tensors[i].begin(), tensors[i].end());
    if (!parameter.quantized) continue;
    quantized.insert(tensors[i].begin(), tensors[i].end());
    for (size_t part = 0; part < tensors[i].size(); ++part) {
      const int64_t channels = parameter.is_in_out ? parameter.cols : parameter.parts[part].rows;
      sorted.matrices.push_back(
          {tensors[i][part], channels, parameter.inputs(), parameter.is_in_out});
    }
  }
  const std::vector<int64_t> words = {config.vocab_size, config.hidden_size};
  for (const std::string_view name : files.names()) {
    const TensorEntry* const tensor = files.find(name);
    // A head that is tied to the words may lie in the files too, as a copy of them.
    const bool copy_of_words =
        !known.contains(tensor) && config.tie_word_embeddings && tensor->shape == words;
    if (!quantized.contains(tensor) && !copy_of_words) sorted.others.push_back(tensor);
  }
  return sorted;
}

uint64_t write_weights(const fs::path& path, const WeightFolder& files, const Sorted& sorted) {
  const auto& [matrices, others] = sorted;
  std::vector<TensorEntry> entries;
  for (const TensorEntry* tensor : others) entries.push_back(*tensor);
  for (const Matrix& m : matrices) {
    entries.push_back({m.tensor->name, DType::kI8, {m.channels, m.inputs}});
  }
  for (const Matrix& m : matrices) {
    entries.push_back({scale_name(m.tensor->name), DType::kF32, {m.channels}});
  }
  SafetensorsWriter writer(path, std::move(entries));
  std::vector<std::byte> buffer(kPieceBytes);
  for (const TensorEntry* tensor : others) {
    in_pieces(tensor->bytes(), std::span(buffer), [&](size_t first, std::span<std::byte> piece) {
      files.read_bytes(tensor->name, first, piece);
      writer.write_bytes(tensor->name, piece);
    });
  }
  std::vector<std::vector<float>> scales;  // small beside the values, and known behind them
  Progress progress("quantizing", matrices.size(), "matrices");
  for (const Matrix& m : matrices) {
    auto& of_matrix = scales.emplace_back();
    const auto read = [&](uint64_t first, std::span<float> values) {
      files.read_as_f32(m.tensor->name, first, values);
    };
    quantize_matrix({m.channels, m.inputs, m.in_out, read}, [&](const QuantizedChannels& some) {
      writer.write_bytes(m.tensor->name, std::as_bytes(some.values));
      of_matrix.insert(of_matrix.end(), some.scales.begin(), some.scales.end());
    });
    progress.update(scales.size());
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    writer.write(scale_name(matrices[i].tensor->name), scales[i]);
  }
  writer.commit();
  return writer.file_bytes();
}

}  // namespace

QuantizeSummary quantize(const QuantizeOptions& options) {
  const ModelFolder folder = open_model_folder(options.model);
  if (folder.config.quantized) fail(ErrorKind::kUsage, "{}: is quantised already", options.model);
  refuse_folder_with_model(options.output_dir);
  ModelConfig config = folder.config;
  config.quantized = true;
  const Head head = head_of(config);
  const auto model = make_model(config, head);
  const WeightFolder files(options.model);
  const Sorted sorted = sort_tensors(files, *model, config);
  make_directories(options.output_dir);
  QuantizeSummary summary;
  summary.original_bytes = files.tensor_bytes();
  for (const std::string_view name : files.names()) {
    summary.fp32_bytes += files.find(name)->elements() * sizeof(float);
  }
  summary.bytes = write_weights(fs::path(options.output_dir) / "model.safetensors", files, sorted);
  save_description(options.output_dir, config, head, *folder.tokenizer, folder.path);
  return summary;
}

}  // namespace snug
