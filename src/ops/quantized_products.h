// Products with int8 weights, dynamically quantised: rows of x become int8 with a scale of their
// own, sums are exact integers, and what comes behind the product (scales, bias, activation) is
// done while a tile of it is at hand. Where the processor has dot products of bytes (AVX-512 VNNI)
// they do it, elsewhere pairs of 16-bit products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/linear.h"
#include "ops/products.h"

namespace snug {

// w[out, in] = scales[out] * values[out, in], row by row.
struct QuantizedMatrix {
  const int8_t* values = nullptr;
  const float* scales = nullptr;
};

struct QuantizedResult {
  const float* bias = nullptr;  // [out], optional
  Activation activation = Activation::kNone;
  float* pre = nullptr;  // [rows, out], optional: the activation's argument
  float* y = nullptr;    // [rows, out]
};

// y = activation(quantised(x)[rows, in] · wᵀ + b). Does not depend on the number of threads.
void quantized_product_nt(const ProductDims& dims, const float* x, const QuantizedMatrix& w,
                          const QuantizedResult& result, std::span<std::byte> workspace);
size_t quantized_product_workspace(int64_t in, int threads);

// dx[rows, in] (+)= dy[rows, out] · w[out, in], in fp32: some rows of w at a time.
void dequantized_product_nn(const ProductDims& dims, const float* dy, const QuantizedMatrix& w,
                            float* dx, Write write, std::span<std::byte> workspace);
size_t dequantized_product_workspace(int64_t in, int64_t out);

}  // namespace snug
