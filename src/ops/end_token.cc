#include "ops/end_token.h"

#include <algorithm>

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {

void EndTokenGradient::run(const Call& call) const {
  const Tensor &dy = call.in[0], &dx = call.out[0];
  if (!accumulate) {
    over_ranges(dx.rows, 1, [&](int64_t first, int64_t behind) {
      std::fill(dx.f32() + first * dx.cols, dx.f32() + behind * dx.cols, 0.0f);
    });
  }
  for (int64_t s = 0; s < dy.rows; ++s) {
    const float* const from = dy.f32() + s * dy.cols;
    float* const to = dx.f32() + end_of(call.batch->starts, s, end) * dx.cols;
    for (int64_t i = 0; i < dy.cols; ++i) to[i] += from[i];
  }
}

void EndToken::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == y.cols);
  for (int64_t s = 0; s < y.rows; ++s) {
    std::copy_n(x.f32() + end_of(call.batch->starts, s, end) * x.cols, x.cols,
                y.f32() + s * y.cols);
  }
}

void EndToken::backward(const Node& node, GradientWriter& writer) const {
  const ValueId dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  if (const auto dx = writer.gradient_for(node.inputs[0])) {
    writer.emit(std::make_shared<EndTokenGradient>(end, dx.accumulate), {dy}, {dx.value});
  }
}

OpPtr end_token(End end) { return std::make_shared<EndToken>(end); }

}  // namespace snug
