// Linear layers on the device: products by cuBLASLt, which adds the bias, or with GELU or its
// gradient, where that pays, by a kernel that does both; other activations and sums over rows are
// kernels.
#include "ops/linear.h"

#include "core/error.h"
#include "cuda/kernels.h"
#include "cuda/products.h"

namespace snug::cuda {
namespace {

// The shape of a layer with weight w (or its gradient), for `rows` rows.
ProductShape shape_of(ProductKind kind, const Tensor& w, WeightLayout layout, DType dtype,
                      int64_t rows) {
  const bool out_in = layout == WeightLayout::kOutIn;
  return {.kind = kind,
          .dtype = dtype,
          .rows = rows,
          .in = out_in ? w.cols : w.rows,
          .out = out_in ? w.rows : w.cols,
          .layout = layout};
}

// The product with an adapter's up-projection, between u[rows, rank] and some columns of y.
ProductShape adapter_shape(ProductKind kind, const Tensor& u, const Tensor& up, const Tensor& y) {
  return {.kind = kind,
          .dtype = u.dtype,
          .rows = u.rows,
          .in = up.cols,
          .out = up.rows,
          .out_stride = y.cols};
}

// A weight's gradient is added to, or written where the micro-batch is the whole step: then perhaps
// rounded, as the arena has it.
void write_gradient_as(ProductShape& shape, const Tensor& dw, const Launch& call) {
  shape.overwrite = call.only_pass;
  shape.rounds = dw.dtype != DType::kF32;
  SNUG_CHECK(!shape.rounds || (shape.overwrite && dw.dtype == shape.dtype));
}

void* column_of(const Tensor& y, int64_t column) {
  return static_cast<std::byte*>(y.data) + size_t(column) * dtype_bytes(y.dtype);
}

}  // namespace

void launch(const Linear& op, const Launch& call) {
  const Tensor &x = call.in[0], &w = call.in[1], &b = call.in[2], &y = call.out[0];
  ProductShape shape = shape_of(ProductKind::kForward, w, op.spec.layout, x.dtype, x.rows);
  shape.bias = bool(b);
  SNUG_CHECK(x.cols == shape.in && y.cols == shape.out && x.rows == y.rows && x.dtype == w.dtype);
  const Tensor kept = call.out.size() > 1 ? call.out[1] : Tensor();
  const Tensor& pre = kept ? kept : y;
  ProductTensors tensors{
      .left = x.data, .right = w.data, .bias = b.data, .result = y.data, .argument = kept.data};
  const bool slopes = op.spec.keeps_slope && kept;
  const auto activation = [&] {
    slopes ? launch_gelu_and_slope(op.spec.activation, y, kept, call)
           : launch_activation(op.spec.activation, pre, y, call);
  };
  const bool adapted = !op.spec.adapters.first_columns.empty();
  SNUG_CHECK(!slopes || !adapted);
  if (is_gelu(op.spec.activation) && !adapted) {
    shape.gelu = slopes ? ProductGelu::kKeepsSlope
                 : kept ? ProductGelu::kKeeps
                        : ProductGelu::kForgets;
    shape.gelu_form = op.spec.activation;
    return call.products->run_with_gelu(shape, tensors, call.workspace, call.stream,
                                        {.without_gelu = activation});
  }
  tensors.result = pre.data;
  call.products->run(shape, tensors, call.workspace, call.stream);
  add_adapters(op.spec.adapters, call.in.subspan(3), pre, call);
  if (op.spec.activation != Activation::kNone) activation();
}

void add_adapters(const Adapters& adapters, std::span<const Tensor> pairs, const Tensor& y,
                  const Launch& call) {
  for (size_t i = 0; i < adapters.first_columns.size(); ++i) {
    const Tensor &u = pairs[2 * i], &up = pairs[2 * i + 1];
    ProductShape shape = adapter_shape(ProductKind::kForward, u, up, y);
    shape.accumulate = true;
    call.products->run(shape,
                       {.left = u.data,
                        .right = up.data,
                        .result = column_of(y, adapters.first_columns[i]),
                        .scale = adapters.scale},
                       call.workspace, call.stream);
  }
}

void launch(const AdapterGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &u = call.in[1], &up = call.in[2], &du = call.out[0],
               &dup = call.out[1];
  void* const columns = column_of(dy, op.first_column);
  if (du) {
    call.products->run(adapter_shape(ProductKind::kInputGradient, du, up, dy),
                       {.left = columns, .right = up.data, .result = du.data, .scale = op.scale},
                       call.workspace, call.stream);
  }
  if (dup) {
    ProductShape shape = adapter_shape(ProductKind::kWeightGradient, u, up, dy);
    write_gradient_as(shape, dup, call);
    call.products->run(shape,
                       {.left = columns, .right = u.data, .result = dup.data, .scale = op.scale},
                       call.workspace, call.stream);
  }
}

void launch(const LinearInputGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  ProductShape shape = shape_of(ProductKind::kInputGradient, w, op.layout, dy.dtype, dy.rows);
  shape.accumulate = op.accumulate;
  ProductTensors tensors{.left = dy.data, .right = w.data, .result = dx.data};
  if (op.activation == Activation::kNone) {
    return call.products->run(shape, tensors, call.workspace, call.stream);
  }
  SNUG_CHECK((is_gelu(op.activation) || op.activation == Activation::kKeptSlope) && !op.accumulate);
  const Tensor &kept = call.in[2], &db = call.out[1];
  shape.gelu = ProductGelu::kGradient;
  shape.gelu_form = op.activation;
  tensors.argument = kept.data;
  tensors.column_sums = db.f32();
  tensors.pending = call.pending;
  // What is left of the epilogue's gradient: all of it, or the sums over rows.
  const auto epilogue = [&](Activation activation) {
    const Tensor in[] = {dx, kept};
    launch(LinearEpilogueGradient(activation),
           {.in = in, .out = call.out, .workspace = call.workspace, .stream = call.stream});
  };
  call.products->run_with_gelu(shape, tensors, call.workspace, call.stream,
                               {.without_gelu = [&] { epilogue(op.activation); },
                                .with_gelu = [&] { epilogue(Activation::kNone); }});
}

void launch(const LinearWeightGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0];
  ProductShape shape = shape_of(ProductKind::kWeightGradient, dw, op.layout, dy.dtype, dy.rows);
  write_gradient_as(shape, dw, call);
  call.products->run(shape, {.left = dy.data, .right = x.data, .result = dw.data}, call.workspace,
                     call.stream);
}

}  // namespace snug::cuda
