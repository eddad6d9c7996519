// Which products the emulated cuBLASLt has algorithms for: what snug asks of the real one, and no
// more than that one promises.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <vector>

#include "emulated_gpu/cublaslt_objects.h"

namespace emulated {

// Of bytes: what pointers, leading dimensions, rows and depth are multiples of.
inline constexpr int64_t kByteAlign = 4;

struct Call {
  const Operation& operation;
  const Layout &a, &b, &c, &d;

  Call(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
      : operation(object(operation)), a(object(a)), b(object(b)), c(object(c)), d(object(d)) {}

  bool turns_a() const { return operation.transpose_a != CUBLAS_OP_N; }
  bool turns_b() const { return operation.transpose_b != CUBLAS_OP_N; }
  int64_t depth() const { return turns_a() ? a.rows : a.cols; }
};

cublasStatus_t check(const Call& call);

// The orders that the product may be summed in, best guess first. Weight gradients are deep and
// have little to write: as the real library does, it has them done in pieces where it may.
std::vector<SumOrder> orders(const Call& call, const Preference& preference);

}  // namespace emulated
