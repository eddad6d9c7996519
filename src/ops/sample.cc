#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "core/error.h"
#include "core/philox.h"
#include "ops/parallel.h"

namespace snug {
namespace {

struct Drawn {
  int64_t id = 0;
  double log_probability = 0;
};

// The k-th largest value, or minus infinity where there are no more than k. `scratch` is
// overwritten.
float kth_largest(std::span<const float> values, int64_t k, std::span<float> scratch) {
  if (k <= 0 || k >= int64_t(values.size())) return -std::numeric_limits<float>::infinity();
  std::ranges::copy(values, scratch.begin());
  std::nth_element(scratch.begin(), scratch.begin() + k - 1, scratch.end(), std::greater());
  return scratch[size_t(k - 1)];
}

// The largest value above or at which lie at least `share` of the probability of what is not below
// `floor`.
float top_p_threshold(std::span<const float> values, float floor, float share,
                      std::span<float> scratch) {
  size_t count = 0;
  for (const float x : values) {
    if (x >= floor) scratch[count++] = x;
  }
  std::sort(scratch.begin(), scratch.begin() + ptrdiff_t(count), std::greater());
  double total = 0, above = 0;
  for (size_t i = 0; i < count; ++i) total += std::exp(double(scratch[i]) - double(scratch[0]));
  for (size_t i = 0; i < count; ++i) {
    above += std::exp(double(scratch[i]) - double(scratch[0]));
    if (above >= double(share) * total) return scratch[i];
  }
  return floor;
}

Drawn draw(std::span<const float> logits, float threshold, float uniform) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0, sum = 0;
  int64_t last = 0;
  for (const float x : logits) total += x >= threshold ? std::exp(double(x) - top) : 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] < threshold) continue;
    last = int64_t(id);
    sum += std::exp(double(logits[id]) - top);
    if (sum > double(uniform) * total) break;
  }
  return {last, double(logits[size_t(last)]) - top - std::log(total)};
}

Drawn most_likely(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float x : logits) total += std::exp(double(x) - double(*best));
  return {best - logits.begin(), -std::log(total)};
}

}  // namespace

float sample_draw(uint64_t seed, uint64_t text, uint32_t position) {
  constexpr uint32_t kPurpose = 0x53414d50;
  const auto words = philox({uint32_t(text), uint32_t(text >> 32), position, kPurpose},
                            {uint32_t(seed), uint32_t(seed >> 32)});
  return float(words[0] >> 8) * 0x1p-24f;
}

size_t Sample::workspace_bytes(const Sizing& sizing) const {
  const int64_t vocabulary = (sizing.in[0].cols + 63) / 64 * 64;
  if (sizing.device.kind == DeviceKind::kCuda) {
    return size_t(sizing.dims.targets * vocabulary) * sizeof(float);
  }
  return 2 * size_t(vocabulary) * sizeof(float);
}

void Sample::run(const Call& call) const {
  const Tensor &logits = call.in[0], &next = call.out[0];
  const Tensor seen = call.out.size() > 1 ? call.out[1] : Tensor();
  const Batch& batch = *call.batch;
  const auto vocabulary = size_t(spec.vocabulary > 0 ? spec.vocabulary : logits.cols);
  auto* const seen_bytes = static_cast<uint8_t*>(seen.data);
  if (seen) {
    for (int64_t t = 0; t < batch.dims.tokens; ++t) {
      uint8_t* const own = seen_bytes + batch.samples[batch.row_of[t]] * vocabulary;
      if (batch.positions[t] == 0) std::fill_n(own, vocabulary, uint8_t{0});
      own[batch.ids[t]] = 1;
    }
  }
  const std::span<float> adjusted(reinterpret_cast<float*>(call.workspace.data()), vocabulary);
  const std::span<float> scratch(adjusted.data() + adjusted.size(), vocabulary);
  for (int64_t row = 0; row < logits.rows; ++row) {
    const int64_t token = batch.target_rows[row];
    const uint64_t text = batch.samples[batch.row_of[token]];
    const float* const from = logits.f32() + row * logits.cols;
    const float inverse = spec.temperature == 0.0f ? 1.0f : 1.0f / spec.temperature;
    for (size_t id = 0; id < vocabulary; ++id) {
      float x = from[id];
      if (seen && seen_bytes[text * vocabulary + id]) {
        x = x > 0 ? x / spec.repetition_penalty : x * spec.repetition_penalty;
      }
      adjusted[id] = x * inverse;
    }
    float* const to = next.f32() + row * next.cols;
    Drawn drawn;
    if (spec.temperature == 0.0f) {
      drawn = most_likely(adjusted);
    } else {
      float threshold = kth_largest(adjusted, spec.top_k, scratch);
      if (spec.top_p < 1.0f) threshold = top_p_threshold(adjusted, threshold, spec.top_p, scratch);
      const auto number = uint64_t(batch.labels[batch.row_of[token]]);
      drawn = draw(adjusted, threshold,
                   sample_draw(spec.seed, number, uint32_t(batch.positions[token]) + 1));
    }
    to[0] = float(drawn.id);
    to[1] = float(drawn.log_probability);
  }
}

OpPtr sample(const SampleSpec& spec) { return std::make_shared<Sample>(spec); }

}  // namespace snug
