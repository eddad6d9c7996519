// Linear layers on the device: products by cuBLASLt, which adds the bias; activations and sums over rows are kernels.
#include "ops/linear.h"

#include "core/error.h"
#include "cuda/kernels.h"
#include "cuda/products.h"

namespace snug::cuda {

void launch(const Linear& op, const Launch& call) {
  const Tensor &x = call.in[0], &w = call.in[1], &b = call.in[2], &y = call.out[0];
  SNUG_CHECK(x.cols == w.cols && y.cols == w.rows && x.rows == y.rows && x.dtype == w.dtype);
  const bool keeps = call.out.size() > 1 && call.out[1];
  const Tensor& pre = keeps ? call.out[1] : y;
  call.products->run({.kind = ProductKind::kForward, .dtype = x.dtype, .rows = x.rows, .in = w.cols, .out = w.rows, .bias = bool(b)},
                     {.left = x.data, .right = w.data, .bias = b.data, .result = pre.data}, call.workspace, call.stream);
  if (op.spec.activation != Activation::kNone) launch_activation(op, pre, y, call);
}

void launch(const LinearInputGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  call.products->run({.kind = ProductKind::kInputGradient, .dtype = dy.dtype, .rows = dy.rows, .in = w.cols, .out = w.rows,
                      .accumulate = op.accumulate},
                     {.left = dy.data, .right = w.data, .result = dx.data}, call.workspace, call.stream);
}

void launch(const LinearWeightGradient&, const Launch& call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0];
  call.products->run({.kind = ProductKind::kWeightGradient, .dtype = dy.dtype, .rows = dy.rows, .in = dw.cols, .out = dw.rows},
                     {.left = dy.data, .right = x.data, .result = dw.data}, call.workspace, call.stream);
}

}  // namespace snug::cuda
