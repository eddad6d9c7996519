// What the handles of the emulated cuBLASLt point to, and what an algorithm's words say.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <cstring>

#include "emulated_gpu/matrix_product.h"

namespace emulated {

struct Library {};

struct Layout {
  cudaDataType_t type;
  int64_t rows, cols, stride;
};

struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* argument = nullptr;
  int64_t argument_stride = 0;

  bool has(int part) const { return (epilogue & part) == part; }
  bool has_gelu() const { return has(CUBLASLT_EPILOGUE_GELU); }
  bool has_slope() const { return has(CUBLASLT_EPILOGUE_DGELU); }
  bool has_argument() const { return has(CUBLASLT_EPILOGUE_GELU_AUX) || has_slope(); }
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

// What cublasLtMatmulAlgo_t has in it.
struct Algorithm {
  static constexpr uint64_t kMark = 0x646574616c756d65;  // any other one is not ours

  uint64_t mark = kMark;
  SumOrder order = SumOrder::kWhole;
  uint64_t swizzling = 0;  // of blocks; changes nothing here

  static Algorithm from(const cublasLtMatmulAlgo_t& opaque) {
    Algorithm algorithm;
    std::memcpy(&algorithm, opaque.data, sizeof(algorithm));
    return algorithm;
  }
  cublasLtMatmulAlgo_t opaque() const {
    cublasLtMatmulAlgo_t result = {};
    std::memcpy(result.data, this, sizeof(*this));
    return result;
  }
  bool is_ours() const {
    return mark == kMark && order >= SumOrder::kWhole && order <= SumOrder::kCounted;
  }
  bool is_supported() const {
    return is_ours() && swizzling <= (order == SumOrder::kWhole ? 1 : 0);
  }
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

// The library's handles are our objects.
inline Layout& object(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<Layout*>(handle); }
inline Operation& object(cublasLtMatmulDesc_t handle) {
  return *reinterpret_cast<Operation*>(handle);
}
inline Preference& object(cublasLtMatmulPreference_t handle) {
  return *reinterpret_cast<Preference*>(handle);
}

}  // namespace emulated
