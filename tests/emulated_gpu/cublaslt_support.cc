#include "emulated_gpu/cublaslt_support.h"

#include "emulated_gpu/runtime.h"

namespace emulated {
namespace {

constexpr int64_t kLeastDepthOfHalves = 64;
constexpr int64_t kArgumentAlign = 8;  // of its leading dimension

// Bytes are multiplied into integers alone.
bool supports_bytes(const Call& call) {
  const auto whole = [](int64_t size) { return size % kByteAlign == 0; };
  return call.d.type == CUDA_R_32I && call.operation.compute == CUBLAS_COMPUTE_32I &&
         call.operation.scale == CUDA_R_32I && call.turns_a() && !call.turns_b() &&
         whole(call.a.stride) && whole(call.b.stride) && whole(call.d.rows) &&
         whole(call.depth()) && call.operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

bool supports_floats(const Call& call) {
  const cudaDataType_t type = call.a.type, result = call.d.type;
  const cublasComputeType_t compute = call.operation.compute;
  const bool single = type == CUDA_R_32F, half = type == CUDA_R_16F || type == CUDA_R_16BF;
  if (!single && !half) return false;
  if (type == CUDA_R_16BF && device().capability < 80) return false;
  if (result != type && result != CUDA_R_32F) return false;
  if (call.operation.scale != CUDA_R_32F) return false;
  if (compute != CUBLAS_COMPUTE_32F && !(compute == CUBLAS_COMPUTE_32F_FAST_TF32 && single)) {
    return false;
  }
  switch (int(call.operation.epilogue)) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
      return true;
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      return result != CUDA_R_32F;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
      return result != CUDA_R_32F && call.operation.argument_stride % kArgumentAlign == 0;
    default:
      return false;
  }
}

}  // namespace

cublasStatus_t check(const Call& call) {
  for (const Layout* layout : {&call.a, &call.b, &call.c, &call.d}) {
    if (layout->rows < 1 || layout->cols < 1 || layout->stride < layout->rows) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const int64_t rows = call.turns_a() ? call.a.cols : call.a.rows,
                cols = call.turns_b() ? call.b.rows : call.b.cols,
                depth_of_b = call.turns_b() ? call.b.cols : call.b.rows;
  for (const Layout* layout : {&call.c, &call.d}) {
    if (layout->rows != rows || layout->cols != cols) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (depth_of_b != call.depth()) return CUBLAS_STATUS_INVALID_VALUE;
  if (call.operation.has_argument() && call.operation.argument_stride < rows) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (call.a.type != call.b.type || call.c.type != call.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool supported = call.a.type == CUDA_R_8I ? supports_bytes(call) : supports_floats(call);
  return supported ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

std::vector<SumOrder> orders(const Call& call, const Preference& preference) {
  std::vector<SumOrder> list;
  const auto add = [&](SumOrder order) {
    if (workspace_bytes(order) <= preference.workspace_bytes) list.push_back(order);
  };
  if (!call.turns_b()) add(SumOrder::kWhole);
  add(SumOrder::kCounted);
  if (call.depth() >= kLeastDepthOfHalves &&
      (preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0) {
    add(SumOrder::kHalves);
  }
  if (list.empty()) add(SumOrder::kWhole);
  return list;
}

}  // namespace emulated
