#include "ops/span_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/cuda_workspace.h"

namespace snug {
namespace {

// One column of a sequence's rows: returns -log p(label) and writes (p - onehot) * scale to d
// (optional).
double end_loss(const float* logits, int64_t tokens, int32_t label, double scale, float* d) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (int64_t t = 0; t < tokens; ++t) max = std::max(max, double(logits[t * kSpanEnds]));
  for (int64_t t = 0; t < tokens; ++t) sum += std::exp(logits[t * kSpanEnds] - max);
  if (d) {
    for (int64_t t = 0; t < tokens; ++t) {
      d[t * kSpanEnds] =
          float(scale * (std::exp(logits[t * kSpanEnds] - max) / sum - (t == label ? 1.0 : 0.0)));
    }
  }
  return std::log(sum) +
         (max - logits[label * kSpanEnds]);  // the difference first: max may be huge
}

}  // namespace

size_t SpanLoss::workspace_bytes(const Sizing& sizing) const {
  return row_losses_bytes(sizing.device, sizing.dims.sequences);
}

void SpanLoss::run(const Call& call) const {
  const Tensor &logits = call.in[0], &loss = call.out[0];
  const Batch& batch = *call.batch;
  SNUG_CHECK(logits.cols == kSpanEnds && (!loss || loss.dtype == DType::kF64) &&
             batch.dims.label_words == kSpanEnds);
  float* const dlogits = call.out.size() > 1 ? call.out[1].f32() : nullptr;
  const double scale = double(call.step->loss_scale) / kSpanEnds;
  double total = 0.0;
  for (int64_t s = 0; s < batch.dims.sequences; ++s) {
    const int64_t begin = batch.starts[s], tokens = batch.starts[s + 1] - begin;
    for (int64_t end = 0; end < kSpanEnds; ++end) {
      const int32_t label = batch.labels[s * kSpanEnds + end];
      float* const d = dlogits ? dlogits + begin * kSpanEnds + end : nullptr;
      if (label < 0) {
        for (int64_t t = 0; d && t < tokens; ++t) d[t * kSpanEnds] = 0.0f;
        continue;
      }
      SNUG_CHECK(label < tokens);
      total += end_loss(logits.f32() + begin * kSpanEnds + end, tokens, label, scale, d);
    }
  }
  if (loss) *static_cast<double*>(loss.data) += scale * total;
}

OpPtr span_loss() { return std::make_shared<SpanLoss>(); }

}  // namespace snug
