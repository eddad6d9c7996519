// Row-major matrix products by OpenBLAS, named by their place in a linear layer. Its OpenMP build
// runs on snug's threads and keeps packing buffers of its own, which the plan must know:
// warm_up_products() makes it touch them all.
#pragma once

#include <cstdint>

namespace snug {

enum class Write { kOverwrite, kAdd };

struct ProductDims {
  int64_t rows = 0;  // tokens or sequences
  int64_t in = 0, out = 0;
  int64_t out_stride = 0;  // elements from one row of y or dy to the next; 0: out
  float scale = 1.0f;      // of the product
  int64_t in_stride = 0;   // elements from one row of x or dx to the next; 0: in
};

// y[rows, out] (+)= x[rows, in] · w[out, in]ᵀ
void product_nt(const ProductDims& dims, const float* x, const float* w, float* y, Write write);
// dx[rows, in] (+)= dy[rows, out] · w[out, in]
void product_nn(const ProductDims& dims, const float* dy, const float* w, float* dx, Write write);
// dw[out, in] += dy[rows, out]ᵀ · x[rows, in]
void product_tn(const ProductDims& dims, const float* dy, const float* x, float* dw);

// After this call, products with in, out <= largest_dim and at most `rows` rows on the current
// number of threads leave the memory of the process as it is, but for some pages. Takes
// 32 MiB at most, or 8 MiB a thread, for the moment of the call, so call it before the arena is
// taken.
void warm_up_products(int64_t largest_dim, int64_t rows);

}  // namespace snug
