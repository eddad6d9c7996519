#include "ops/first_token.h"

#include <algorithm>

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {
namespace {

}  // namespace

void FirstTokenGradient::run(const Call& call) const {
  const Tensor &dy = call.in[0], &dx = call.out[0];
  if (!accumulate) {
    over_ranges(dx.rows, 1, [&](int64_t begin, int64_t end) {
      std::fill(dx.f32() + begin * dx.cols, dx.f32() + end * dx.cols, 0.0f);
    });
  }
  for (int64_t s = 0; s < dy.rows; ++s) {
    const float* const from = dy.f32() + s * dy.cols;
    float* const to = dx.f32() + call.batch->starts[s] * dx.cols;
    for (int64_t i = 0; i < dy.cols; ++i) to[i] += from[i];
  }
}

void FirstToken::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == y.cols);
  for (int64_t s = 0; s < y.rows; ++s) {
    std::copy_n(x.f32() + call.batch->starts[s] * x.cols, x.cols, y.f32() + s * y.cols);
  }
}

void FirstToken::backward(const Node& node, GradientWriter& writer) const {
  const ValueId dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  if (const auto dx = writer.gradient_for(node.inputs[0])) {
    writer.emit(std::make_shared<FirstTokenGradient>(dx.accumulate), {dy}, {dx.value});
  }
}

OpPtr first_token() { return std::make_shared<FirstToken>(); }

}  // namespace snug
