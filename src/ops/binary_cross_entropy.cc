#include "ops/binary_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/cuda_workspace.h"

namespace snug {

size_t BinaryCrossEntropy::workspace_bytes(const Sizing& sizing) const {
  return row_losses_bytes(sizing.device, sizing.in[0].row_count(sizing.dims));
}

void BinaryCrossEntropy::run(const Call& call) const {
  const Tensor &logits = call.in[0], &loss = call.out[0];
  SNUG_CHECK(logits.cols == spec.classes && (!loss || loss.dtype == DType::kF64));
  SNUG_CHECK(call.batch->dims.label_words == spec.label_words());
  float* const dlogits = call.out.size() > 1 ? call.out[1].f32() : nullptr;
  const double scale = double(call.step->loss_scale) / double(spec.classes);
  double total = 0.0;
  for (int64_t s = 0; s < logits.rows; ++s) {
    const int32_t* const words = call.batch->labels + s * spec.label_words();
    for (int64_t c = 0; c < spec.classes; ++c) {
      const double x = logits.f32()[s * spec.classes + c], wanted = has_class(words, c) ? 1.0 : 0.0;
      const double small = std::exp(-std::abs(x));  // at most one: nothing overflows
      total += std::max(x, 0.0) - x * wanted + std::log1p(small);
      if (dlogits) {
        dlogits[s * spec.classes + c] =
            float(scale * ((x < 0 ? small : 1.0) / (1.0 + small) - wanted));
      }
    }
  }
  if (loss) *static_cast<double*>(loss.data) += scale * total;
}

OpPtr binary_cross_entropy(const BinaryCrossEntropySpec& spec) {
  return std::make_shared<BinaryCrossEntropy>(spec);
}

}  // namespace snug
