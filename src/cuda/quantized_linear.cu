// Kernels of ops/quantized_linear.h and ops/dequantize.h: rows become int8, cuBLASLt multiplies,
// and one pass over the integers does the rest. Weights of sizes that it does not multiply as bytes
// are converted, as they are for backward.
#include "cuda/activation.cuh"
#include "cuda/kernels.h"
#include "cuda/products.h"
#include "cuda/quantized.cuh"
#include "ops/cuda_workspace.h"
#include "ops/dequantize.h"
#include "ops/quantize.h"
#include "ops/quantized_linear.h"

namespace snug::cuda {
namespace {

constexpr int kRowBlock = 128;  // threads that share a row

// q[row] = x[row] / scale to the nearest integer. A row is read twice, the second time from the
// caches.
template <class T>
__global__ void __launch_bounds__(kRowBlock)
    quantize_kernel(const T* x, int cols, int8_t* q, float* scales) {
  __shared__ uint32_t largest[kRowBlock / kWarp];
  const int64_t row = blockIdx.x;
  const T* const from = x + row * cols;
  uint32_t most = 0;  // magnitudes compared as integers, by which NaN is above everything
  for (int column = int(threadIdx.x) * kEight; column < cols; column += kRowBlock * kEight) {
    const Eight values = load_eight<true>(from, column, cols);
#pragma unroll
    for (int i = 0; i < kEight; ++i) most = max(most, __float_as_uint(fabsf(values.at[i])));
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
  }
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = most;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kRowBlock / kWarp; ++warp) most = max(most, largest[warp]);
  const float magnitude = __uint_as_float(most);
  const bool nothing = magnitude < kQuantizedNothing;
  const float factor = nothing ? 0.0f : __fdiv_rn(kQuantizedMax, magnitude);
  if (threadIdx.x == 0) scales[row] = nothing ? 0.0f : __fdiv_rn(magnitude, kQuantizedMax);
  for (int column = int(threadIdx.x) * kEight; column < cols; column += kRowBlock * kEight) {
    const Eight values = load_eight<true>(from, column, cols);
    uint32_t bytes[2] = {};
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      bytes[i / 4] |= uint32_t(uint8_t(__float2int_rn(values.at[i] * factor))) << (i % 4 * 8);
    }
    *reinterpret_cast<uint2*>(q + row * cols + column) = {bytes[0], bytes[1]};
  }
}

template <class T>
struct FinishArguments {
  const int32_t* sums;      // [rows, cols]
  const float* row_scales;  // [rows]
  const float* scales;      // [cols]
  const T* bias;            // [cols] or null
  T* pre;                   // or null
  T* y;
  int64_t rows;
  int cols;
};

// y = activation(scaled sums + bias).
template <class T, Activation kActivation>
__global__ void __launch_bounds__(kPlaceBlock) finish_kernel(const FinishArguments<T> a) {
  const auto [row, column] = place(a.cols);
  if (row >= a.rows) return;
  const int4* const sums = reinterpret_cast<const int4*>(a.sums + row * a.cols + column);
  const int4 low = sums[0], high = sums[1];
  const int32_t integers[kEight] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const Eight scales = load_eight<true>(a.scales, column, a.cols);
  const float row_scale = a.row_scales[row];
  Eight values;
#pragma unroll
  for (int i = 0; i < kEight; ++i) values.at[i] = float(integers[i]) * (row_scale * scales.at[i]);
  if (a.bias) values += load_eight<true>(a.bias, column, a.cols);
  const Packed<T> rounded = pack<T>(values);
  if (a.pre) store<true>(a.pre + row * a.cols, column, a.cols, rounded);
  values = unpack(rounded);  // y is what it would be if made again from what is kept
#pragma unroll
  for (int i = 0; i < kEight; ++i) values.at[i] = activate<kActivation, T>(values.at[i]);
  store_eight<true>(a.y + row * a.cols, column, a.cols, values);
}

template <class T, bool kWhole>
__global__ void __launch_bounds__(kPlaceBlock)
    dequantize_kernel(const int8_t* q, const float* scales, int64_t rows, int cols, T* x) {
  const auto [row, column] = place(cols);
  if (row >= rows) return;
  store_eight<kWhole>(x + row * cols, column, cols,
                      load_quantized<kWhole>(q + row * cols, column, cols, scales[row]));
}

// w = scales * q in the type of w.
void launch_dequantize(const Tensor& q, const Tensor& scales, const Tensor& w,
                       cudaStream_t stream) {
  SNUG_CHECK(q.dtype == DType::kI8 && scales.size() == q.rows && q.rows == w.rows &&
             q.cols == w.cols);
  with_type(w.dtype, [&]<class T>() {
    with_bool(q.cols % kEight == 0, [&]<bool kWhole>() {
      dequantize_kernel<T, kWhole><<<place_blocks(q), kPlaceBlock, 0, stream>>>(
          data_of<int8_t>(q), scales.f32(), q.rows, int(q.cols), data_of<T>(w));
      SNUG_CUDA_LAUNCHED("dequantize");
    });
  });
}

template <class T>
void launch_finish(Activation activation, const FinishArguments<T>& arguments, const Tensor& y,
                   cudaStream_t stream) {
  const auto start = [&]<Activation kActivation>() {
    finish_kernel<T, kActivation><<<place_blocks(y), kPlaceBlock, 0, stream>>>(arguments);
    SNUG_CUDA_LAUNCHED("quantized_linear_finish");
  };
  activation == Activation::kNone ? start.template operator()<Activation::kNone>()
                                  : with_bending(activation, start);
}

// What a layer writes: with adapters the argument of its activation alone, which has to wait for
// them.
struct Results {
  Activation activation;
  Tensor pre, y;
};

template <class T>
void multiply_bytes(const Results& results, const Launch& call) {
  const Tensor &x = call.in[0], &w = call.in[1], &scales = call.in[2], &b = call.in[3],
               &y = results.y;
  const QuantizedLinearWorkspace layout(x.rows, w.cols, w.rows, sizeof(T));
  SNUG_CHECK(call.workspace.size() >= layout.bytes && (!b || b.dtype == y.dtype));
  std::byte* const base = call.workspace.data();
  auto* const q = reinterpret_cast<int8_t*>(base + layout.x);
  auto* const row_scales = reinterpret_cast<float*>(base + layout.scales);
  auto* const sums = reinterpret_cast<int32_t*>(base + layout.sums);
  quantize_kernel<T>
      <<<unsigned(x.rows), kRowBlock, 0, call.stream>>>(data_of<T>(x), int(x.cols), q, row_scales);
  SNUG_CUDA_LAUNCHED("quantize");
  call.products->run({.kind = ProductKind::kForward,
                      .dtype = DType::kI8,
                      .rows = x.rows,
                      .in = w.cols,
                      .out = w.rows},
                     {.left = q, .right = w.data, .result = sums},
                     {base + layout.products, kProductWorkspaceBytes}, call.stream);
  launch_finish<T>(results.activation,
                   {.sums = sums,
                    .row_scales = row_scales,
                    .scales = scales.f32(),
                    .bias = data_of<T>(b),
                    .pre = data_of<T>(results.pre),
                    .y = data_of<T>(y),
                    .rows = y.rows,
                    .cols = int(y.cols)},
                   y, call.stream);
}

// The weight in the compute type, in the workspace.
Tensor dequantized(const Tensor& w, const Tensor& scales, DType dtype, const Launch& call) {
  const DequantizedWorkspace layout(w.cols, w.rows, dtype_bytes(dtype));
  SNUG_CHECK(call.workspace.size() >= layout.bytes);
  const Tensor result = {call.workspace.data() + layout.weight, dtype, w.rows, w.cols};
  launch_dequantize(w, scales, result, call.stream);
  return result;
}

std::span<std::byte> product_workspace(const Tensor& w, DType dtype, const Launch& call) {
  return call.workspace.subspan(DequantizedWorkspace(w.cols, w.rows, dtype_bytes(dtype)).products,
                                kProductWorkspaceBytes);
}

}  // namespace

void launch(const QuantizedLinear& op, const Launch& call) {
  const Tensor &x = call.in[0], &w = call.in[1], &b = call.in[3], &y = call.out[0];
  SNUG_CHECK(x.cols == w.cols && y.cols == w.rows && x.rows == y.rows && w.dtype == DType::kI8);
  if (x.rows == 0) return;
  const Tensor kept = call.out.size() > 1 ? call.out[1] : Tensor(), pre = kept ? kept : y;
  const bool in_bytes = multiplies_bytes(w.cols, w.rows),
             adapted = !op.spec.adapters.first_columns.empty();
  if (in_bytes) {
    const Results results =
        adapted ? Results{Activation::kNone, {}, pre} : Results{op.spec.activation, kept, y};
    with_type(x.dtype, [&]<class T>() { multiply_bytes<T>(results, call); });
    if (!adapted) return;
  } else {
    const Tensor weight = dequantized(w, call.in[2], x.dtype, call);
    call.products->run({.kind = ProductKind::kForward,
                        .dtype = x.dtype,
                        .rows = x.rows,
                        .in = w.cols,
                        .out = w.rows,
                        .bias = bool(b)},
                       {.left = x.data, .right = weight.data, .bias = b.data, .result = pre.data},
                       product_workspace(w, x.dtype, call), call.stream);
  }
  add_adapters(op.spec.adapters, call.in.subspan(4), pre, call);
  if (op.spec.activation != Activation::kNone) launch_activation(op.spec.activation, pre, y, call);
}

void launch(const QuantizedLinearInputGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  const Tensor weight = dequantized(w, call.in[2], dy.dtype, call);
  call.products->run({.kind = ProductKind::kInputGradient,
                      .dtype = dy.dtype,
                      .rows = dy.rows,
                      .in = w.cols,
                      .out = w.rows,
                      .accumulate = op.accumulate},
                     {.left = dy.data, .right = weight.data, .result = dx.data},
                     product_workspace(w, dy.dtype, call), call.stream);
}

void launch(const Dequantize&, const Launch& call) {
  launch_dequantize(call.in[0], call.in[1], call.out[0], call.stream);
}

}  // namespace snug::cuda
