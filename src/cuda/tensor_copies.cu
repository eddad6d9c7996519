#include "cuda/tensor_copies.cuh"

#include "core/error.h"

namespace snug::cuda {
namespace {

// The driver's function, found at run time: nothing else needs its library.
using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  SNUG_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
#else
  SNUG_CUDA(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result));
#endif
  if (result != cudaDriverEntryPointSuccess) fail_call("cuTensorMapEncodeTiled", "the driver does not know it");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const CopiedMatrix& matrix) {
  static const Encode encode = find_encode();
  SNUG_CHECK(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.cols % 8 == 0);
  const cuuint64_t sizes[] = {cuuint64_t(matrix.cols), cuuint64_t(matrix.rows)}, row_bytes = cuuint64_t(matrix.cols) * 2;
  const cuuint32_t box[] = {kRowBytes / 2, cuuint32_t(matrix.box_rows)}, steps[] = {1, 1};
  CUtensorMap map;
  // Bits are moved as they are: the type matters for nothing but the elements' size.
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix.data), sizes, &row_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_call("cuTensorMapEncodeTiled", "a matrix was refused");
  return map;
}

}  // namespace snug::cuda
