// cuBLASLt's choice of algorithms and its product, with the checks that the real one has.
// Algorithms differ in the order of sums and in what they want of a workspace: one counts in it,
// and clears that by a node of its own where it is captured, as some of the library's do.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "emulated_gpu/cublaslt_objects.h"
#include "emulated_gpu/cublaslt_support.h"
#include "emulated_gpu/matrix_product.h"
#include "emulated_gpu/product_values.h"
#include "emulated_gpu/runtime.h"

namespace emulated {
namespace {

constexpr uintptr_t kWorkspaceAlign = 256;

cublasStatus_t check(const Algorithm& algorithm) {
  if (!algorithm.is_ours()) return CUBLAS_STATUS_INVALID_VALUE;
  return algorithm.is_supported() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t check(const Call& call, const Algorithm& algorithm) {
  const cublasStatus_t status = check(algorithm);
  return status == CUBLAS_STATUS_SUCCESS ? check(call) : status;
}

Factor factor(const void* data, const Layout& layout, bool rows_are_depth, bool to_tf32) {
  Factor result{.data = data,
                .type = layout.type,
                .size = layout.rows,
                .stride = 1,
                .depth_stride = layout.stride,
                .to_tf32 = to_tf32};
  if (rows_are_depth) {
    result.size = layout.cols;
    std::swap(result.stride, result.depth_stride);
  }
  return result;
}

// Whether a matrix lies where the device can read it.
bool lies_well(const void* data, cudaDataType_t type) {
  const size_t align = type == CUDA_R_8I ? size_t{kByteAlign} : value_bytes(type);
  return data && reinterpret_cast<uintptr_t>(data) % align == 0;
}

struct Pointers {
  const void *a, *b, *c;
  void* d;
};

cublasStatus_t check(const Call& call, const Pointers& at, bool reads_c) {
  const Operation& operation = call.operation;
  const cudaDataType_t type = call.d.type;
  const bool good = lies_well(at.a, call.a.type) && lies_well(at.b, call.b.type) &&
                    lies_well(at.d, type) && (!reads_c || lies_well(at.c, type)) &&
                    (!operation.has(CUBLASLT_EPILOGUE_BIAS) || lies_well(operation.bias, type)) &&
                    (!operation.has_argument() || lies_well(operation.argument, type));
  return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t check(SumOrder order, const void* workspace, size_t available) {
  const size_t needed = workspace_bytes(order);
  const bool good = needed == 0 || (workspace && needed <= available &&
                                    reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlign == 0);
  return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

float scalar(const Operation& operation, const void* from) {
  return operation.scale == CUDA_R_32I ? float(*static_cast<const int32_t*>(from))
                                       : *static_cast<const float*>(from);
}

// Integers are added or not; there is no scaling them.
bool scales_well(const Operation& operation, float factor) {
  return operation.scale != CUDA_R_32I || factor == 0.0f || factor == 1.0f;
}

MatrixProduct product_of(const Call& call, const Pointers& at) {
  const Operation& operation = call.operation;
  // Older devices do without.
  const bool to_tf32 =
      operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && device().capability >= 80;
  MatrixProduct product{.first = factor(at.a, call.a, call.turns_a(), to_tf32),
                        .second = factor(at.b, call.b, !call.turns_b(), to_tf32),
                        .depth = call.depth(),
                        .type = call.d.type,
                        .c = {const_cast<void*>(at.c), call.c.stride},
                        .d = {at.d, call.d.stride}};
  if (operation.has(CUBLASLT_EPILOGUE_BIAS)) product.bias = operation.bias;
  if (operation.has_gelu()) product.bending = Bending::kGelu;
  if (operation.has_slope()) product.bending = Bending::kGeluGradient;
  if (operation.has_argument()) {
    product.argument = {operation.argument, operation.argument_stride};
  }
  return product;
}

cublasStatus_t launch(const MatrixProduct& product, cudaStream_t stream) {
  if (product.order == SumOrder::kCounted &&
      cudaMemsetAsync(product.workspace, 0, workspace_bytes(product.order), stream) !=
          cudaSuccess) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  return submit(stream, [product] { compute(product); }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasLtMatmulHeuristicResult_t result_of(const Algorithm& algorithm) {
  return {.algo = algorithm.opaque(),
          .workspaceSize = workspace_bytes(algorithm.order),
          .state = CUBLAS_STATUS_SUCCESS,
          .wavesCount = 1.0f,
          .reserved = {}};
}

}  // namespace
}  // namespace emulated

using namespace emulated;

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the GPU program failed to execute";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "<unknown>";
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  const Call call(desc, a, b, c, d);
  if (const cublasStatus_t status = check(call); status != CUBLAS_STATUS_SUCCESS) return status;
  for (const SumOrder order : orders(call, object(preference))) {
    if (*count < requested) results[(*count)++] = result_of({.order = order});
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Algorithm given = Algorithm::from(*algorithm);
  const cublasStatus_t status = check(Call(desc, a, b, c, d), given);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const cublasLtMatmulAlgo_t kept = result->algo;  // which stays as it is
  *result = result_of(given);
  result->algo = kept;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t available, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Algorithm chosen = algorithm ? Algorithm::from(*algorithm) : Algorithm();
  const Call call(desc, a_layout, b_layout, c_layout, d_layout);
  cublasStatus_t status = check(call, chosen);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  MatrixProduct product = product_of(call, {a, b, c, d});
  product.alpha = scalar(call.operation, alpha);
  product.beta = scalar(call.operation, beta);
  if (!scales_well(call.operation, product.alpha) || !scales_well(call.operation, product.beta)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  product.order = chosen.order;
  product.workspace = workspace;
  status = check(call, {a, b, c, d}, product.beta != 0.0f);
  if (status == CUBLAS_STATUS_SUCCESS) status = check(chosen.order, workspace, available);
  return status == CUBLAS_STATUS_SUCCESS ? launch(product, stream) : status;
}
