// The arithmetic of the emulated cuBLASLt: d = bend(alpha a b + beta c + bias), column-major, with
// sums in fp32 and one rounding. The same order of summing gives the same bits, whatever the number
// of threads.
#pragma once

#include <library_types.h>

#include <cstddef>
#include <cstdint>

#include "emulated_gpu/product_tile.h"

namespace emulated {

enum class SumOrder : uint64_t {
  kWhole = 1,  // over the whole depth
  kHalves,     // each half of it first, the first ones waiting in a workspace
  kCounted,    // as kWhole, where tiles are handed out by a counter: 0 before, their number after
};

// The tanh form; the gradient is that at an argument kept before.
enum class Bending { kNone, kGelu, kGeluGradient };

struct MatrixProduct {
  struct Matrix {
    void* data = nullptr;
    int64_t stride = 0;  // elements from one column to the next
  };

  Factor first, second;  // a and b
  int64_t depth = 0;
  cudaDataType_t type = CUDA_R_32F;  // of c, d, bias and argument; CUDA_R_32I: of sums of bytes
  Matrix c, d;
  float alpha = 1.0f, beta = 0.0f;  // 0 or 1 for integers
  const void* bias = nullptr;       // for each row of d; null: none
  Bending bending = Bending::kNone;
  Matrix argument = {};  // of kGelu, kept before it is rounded to d's type, if not null; or given
  SumOrder order = SumOrder::kWhole;
  void* workspace = nullptr;
};

size_t workspace_bytes(SumOrder order);

void compute(const MatrixProduct& product);

}  // namespace emulated
