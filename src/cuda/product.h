// A matrix product of a linear layer, named by its place there as in ops/products.h.
#pragma once

#include <compare>
#include <cstdint>

#include "core/dtype.h"
#include "ops/linear.h"

namespace snug::cuda {

class PendingSums;

// Weights are written as [out, in] here; where they are stored [in, out], their gradient is too.
enum class ProductKind : uint8_t {
  kForward,         // y[rows, out] = x[rows, in] · w[out, in]ᵀ (+ b)
  kInputGradient,   // dx[rows, in] (+)= dy[rows, out] · w[out, in]
  kWeightGradient,  // dw[out, in] (+)= dy[rows, out]ᵀ · x[rows, in], in fp32 or rounded
};

// What is done behind a product: GELU behind a forward one, of which the argument is kept or the
// slope there or neither, or GELU's gradient by what was kept behind one for the input's gradient.
enum class ProductGelu : uint8_t { kNone, kForgets, kKeeps, kGradient, kKeepsSlope };

struct ProductShape {
  ProductKind kind = ProductKind::kForward;
  DType dtype = DType::kF32;  // of the factors; kI8: kForward only, without bias, to int32, see
                              // multiplies_bytes()
  int64_t rows = 0, in = 0, out = 0;
  bool bias = false;        // kForward only
  bool accumulate = false;  // kForward and kInputGradient: += instead of =
  WeightLayout layout = WeightLayout::kOutIn;
  int64_t out_stride = 0;                 // elements from one row of y or dy to the next; 0: out
  ProductGelu gelu = ProductGelu::kNone;  // see may_fuse_gelu() and has_gelu_product()
  bool overwrite = false;                 // kWeightGradient only: = instead of +=
  Activation gelu_form = Activation::kGeluTanh;  // or kGelu, or for kGradient kKeptSlope
  bool rounds = false;  // kWeightGradient only, with overwrite: to the type of the factors

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductTensors {
  const void* left = nullptr;   // x or dy
  const void* right = nullptr;  // w, or x for kWeightGradient
  const void* bias = nullptr;
  void* result = nullptr;
  void* argument = nullptr;  // of GELU, or the slope there, of the shape of the result; see
                             // has_slope_bytes()
  float scale = 1.0f;        // of the product
  // += the sums over rows of a result with GELU's gradient; null: not wanted.
  float* column_sums = nullptr;
  PendingSums* pending = nullptr;  // where they may wait; null: nowhere
};

// Whether `argument` has slopes as SlopeBytes.
constexpr bool has_slope_bytes(const ProductShape& shape) {
  return slope_type(shape.dtype) == DType::kSlope8 &&
         (shape.gelu == ProductGelu::kKeepsSlope || shape.gelu_form == Activation::kKeptSlope);
}

}  // namespace snug::cuda
