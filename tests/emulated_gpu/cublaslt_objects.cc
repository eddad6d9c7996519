// The functions that make what products are described by, and change it.
#include "emulated_gpu/cublaslt_objects.h"

#include "emulated_gpu/runtime.h"

namespace emulated {
namespace {

template <class Object, class Handle>
cublasStatus_t create(Handle* handle, const Object& object) {
  *handle = reinterpret_cast<Handle>(new Object(object));
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object, class Handle>
cublasStatus_t destroy(Handle handle) {
  delete reinterpret_cast<Object*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t set(T& to, const void* value, size_t bytes) {
  if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (device().count == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  return create(handle, Library{});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy<Library>(handle); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return create(layout, Layout{type, int64_t(rows), int64_t(cols), ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy<Layout>(layout);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(desc, Operation{.compute = compute, .scale = scale});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return destroy<Operation>(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Operation& operation = object(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(operation.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(operation.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(operation.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(operation.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(operation.argument, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(operation.argument_stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, Preference{});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference& preference = object(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reductions, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

// Only the order in which blocks are computed can be chosen.
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Algorithm changed = Algorithm::from(*algorithm);
  if (!changed.is_ours() || attribute != CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  uint32_t swizzling = 0;
  const cublasStatus_t status = set(swizzling, value, bytes);
  changed.swizzling = swizzling;
  if (status == CUBLAS_STATUS_SUCCESS) *algorithm = changed.opaque();
  return status;
}
