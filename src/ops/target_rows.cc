#include "ops/target_rows.h"

#include <algorithm>

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {

void TargetRowsGradient::run(const Call& call) const {
  const Tensor &dy = call.in[0], &dx = call.out[0];
  if (!accumulate) {
    over_ranges(dx.rows, 1, [&](int64_t begin, int64_t end) {
      std::fill(dx.f32() + begin * dx.cols, dx.f32() + end * dx.cols, 0.0f);
    });
  }
  over_ranges(dy.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* const from = dy.f32() + i * dy.cols;
      float* const to = dx.f32() + call.batch->target_rows[i] * dx.cols;
      for (int64_t c = 0; c < dy.cols; ++c) to[c] += from[c];
    }
  });
}

void TargetRows::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == y.cols);
  over_ranges(y.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(x.f32() + call.batch->target_rows[i] * x.cols, x.cols, y.f32() + i * y.cols);
    }
  });
}

void TargetRows::backward(const Node& node, GradientWriter& writer) const {
  const ValueId dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  if (const auto dx = writer.gradient_for(node.inputs[0])) {
    writer.emit(std::make_shared<TargetRowsGradient>(dx.accumulate), {dy}, {dx.value});
  }
}

OpPtr target_rows() { return std::make_shared<TargetRows>(); }

}  // namespace snug
