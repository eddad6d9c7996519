// y = activation(x · wᵀ + b). The product is OpenBLAS's; bias and activation are one pass behind
// it. Backward works in the buffer of dy: the activation's gradient replaces it before the products
// read it.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

enum class Activation : uint8_t { kNone, kGelu, kGeluTanh, kTanh, kRelu };  // kGelu: exact, by erf

// Whether the op keeps x · wᵀ + b beside y; the others' gradients follow from y alone.
constexpr bool keeps_pre_activation(Activation activation) {
  return activation == Activation::kGelu || activation == Activation::kGeluTanh ||
         activation == Activation::kRelu;
}

struct LinearSpec {
  Activation activation = Activation::kNone;
};

// inputs {x[rows, in], w[out, in], b[1, out] (optional)}
// outputs {y[rows, out], pre[rows, out] if keeps_pre_activation()}; pre may be absent where no
// gradient is wanted
OpPtr linear(const LinearSpec& spec);

}  // namespace snug
