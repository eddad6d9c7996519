#include "core/error.h"
#include "cuda/tensor_copies.cuh"

namespace snug::cuda {
namespace {

// The driver's function, found at run time: nothing else needs its library.
using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  SNUG_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                             cudaEnableDefault, &result));
#else
  SNUG_CUDA(
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result));
#endif
  if (result != cudaDriverEntryPointSuccess) {
    fail_call("cuTensorMapEncodeTiled", "the driver does not know it");
  }
  return reinterpret_cast<Encode>(function);
}

// Dimensions behind the columns: their sizes, and how many rows apart their elements are.
struct RowDimension {
  int64_t size = 0, distance = 1;
  int box = 0;
};
template <int kDimensions>
CUtensorMap encoded(const CopiedMatrix& matrix, const RowDimension (&rows)[kDimensions]) {
  static const Encode encode = find_encode();
  SNUG_CHECK(reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.cols % 8 == 0);
  cuuint64_t sizes[kDimensions + 1] = {cuuint64_t(matrix.cols)}, distances[kDimensions] = {};
  cuuint32_t box[kDimensions + 1] = {kRowBytes / 2}, steps[kDimensions + 1] = {1};
  for (int i = 0; i < kDimensions; ++i) {
    sizes[i + 1] = cuuint64_t(rows[i].size);
    distances[i] = cuuint64_t(matrix.cols) * 2 * cuuint64_t(rows[i].distance);
    box[i + 1] = cuuint32_t(rows[i].box);
    steps[i + 1] = 1;
  }
  CUtensorMap map;
  // Bits are moved as they are: the type matters for nothing but the elements' size.
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kDimensions + 1, const_cast<void*>(matrix.data),
      sizes, distances, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_call("cuTensorMapEncodeTiled", "a matrix was refused");
  return map;
}

}  // namespace

CUtensorMap tensor_map(const CopiedMatrix& matrix) {
  return encoded(matrix, {{.size = matrix.rows, .box = matrix.box_rows}});
}
CUtensorMap tensor_map(const CopiedMatrix& matrix, const RowStep (&steps)[3]) {
  RowDimension rows[4] = {{.size = matrix.rows, .box = matrix.box_rows}};
  for (int i = 0; i < 3; ++i) rows[i + 1] = {steps[i].count, steps[i].distance, steps[i].count};
  return encoded(matrix, rows);
}

}  // namespace snug::cuda
