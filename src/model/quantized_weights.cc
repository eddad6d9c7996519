#include "model/quantized_weights.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "model/config.h"
#include "model/tuning.h"
#include "ops/quantize.h"

namespace snug {
namespace {

// Or one channel, where that is more; the plan counts it as heap.
constexpr int64_t kBufferFloats = 32 << 10;

}  // namespace

void choose_quantized(ParameterTable& parameters, const ModelConfig& config, const Tuning& tuning) {
  for (Parameter& p : parameters) {
    p.quantized = p.quantizable && (config.quantized || (tuning.quantize && !p.trained));
  }
  if (tuning.quantize && std::ranges::none_of(parameters, &Parameter::quantized)) {
    throw Error(ErrorKind::kUsage,
                "--quantize int8 is for weights that are not trained, and here all matrices are",
                "freeze some with --freeze embeddings,layers.0-5 or all-but-head, or train "
                "adapters with --lora-rank 8");
  }
}

void quantize_matrix(const MatrixSource& source,
                     const std::function<void(const QuantizedChannels&)>& sink) {
  const int64_t inputs = source.inputs,
                most = std::clamp<int64_t>(kBufferFloats / inputs, 1, source.channels);
  std::vector<float> floats(size_t(most * inputs)), scales(static_cast<size_t>(most)),
      row(source.in_out ? size_t(most) : 0);
  std::vector<int8_t> values(floats.size());
  for (int64_t first = 0; first < source.channels; first += most) {
    const int64_t count = std::min(most, source.channels - first);
    if (source.in_out) {
      for (int64_t i = 0; i < inputs; ++i) {
        source.read(uint64_t(i * source.channels + first), std::span(row).first(size_t(count)));
        for (int64_t c = 0; c < count; ++c) floats[size_t(c * inputs + i)] = row[size_t(c)];
      }
    } else {
      source.read(uint64_t(first * inputs), std::span(floats).first(size_t(count * inputs)));
    }
    quantize_rows(floats.data(), count, inputs, values.data(), scales.data());
    sink({first, std::span(values).first(size_t(count * inputs)),
          std::span(scales).first(size_t(count))});
  }
}

}  // namespace snug
