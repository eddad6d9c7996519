#include "ops/squared_error.h"

#include <bit>
#include <cmath>

#include "core/error.h"
#include "ops/cuda_workspace.h"

namespace snug {

size_t SquaredError::workspace_bytes(const Sizing& sizing) const {
  return row_losses_bytes(sizing.device, sizing.in[0].row_count(sizing.dims));
}

void SquaredError::run(const Call& call) const {
  const Tensor &y = call.in[0], &loss = call.out[0];
  SNUG_CHECK(y.cols == spec.numbers && (!loss || loss.dtype == DType::kF64));
  SNUG_CHECK(call.batch->dims.label_words == spec.label_words());
  float* const dy = call.out.size() > 1 ? call.out[1].f32() : nullptr;
  const double scale = double(call.step->loss_scale) / double(spec.numbers);
  double total = 0.0;
  for (int64_t i = 0; i < y.size(); ++i) {
    const float label = std::bit_cast<float>(call.batch->labels[i]);
    const double error = std::isnan(label) ? 0.0 : double(y.f32()[i]) - double(label);
    total += error * error;
    if (dy) dy[i] = float(2.0 * scale * error);
  }
  if (loss) *static_cast<double*>(loss.data) += scale * total;
}

OpPtr squared_error(const SquaredErrorSpec& spec) { return std::make_shared<SquaredError>(spec); }

}  // namespace snug
