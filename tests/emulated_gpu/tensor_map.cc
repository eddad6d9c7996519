// Refuses what the driver refuses, and also what it takes but nothing here needs: steps between
// elements, interleaving, elements of less than a byte.
#include "emulated_gpu/tensor_map.h"

#include <cstring>
#include <type_traits>

namespace emulated {
namespace {

static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap) && std::is_trivially_copyable_v<TensorMap>);

constexpr uint64_t kAlign = 16;
constexpr cuuint32_t kMaxBox = 256;

// 0: not known here.
uint8_t bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    default:
      return 0;
  }
}

bool take_swizzle(CUtensorMapSwizzle swizzle, TensorMap& map) {
  if (swizzle > CU_TENSOR_MAP_SWIZZLE_128B) return false;
  map.swizzle_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : uint8_t(16 << int(swizzle));
  return true;
}

bool inner_box_fits(const TensorMap& map) {
  const int bytes = map.box[0] * map.element_bytes;
  return bytes % int(kAlign) == 0 && (map.swizzle_bytes == 0 || bytes <= map.swizzle_bytes);
}

}  // namespace

TensorMap tensor_map_of(const CUtensorMap& map) {
  TensorMap copy;
  std::memcpy(&copy, map.opaque, sizeof(copy));
  return copy;
}

}  // namespace emulated

CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank,
                                void* base, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  using namespace emulated;
  TensorMap map = {};
  map.base = static_cast<std::byte*>(base);
  map.element_bytes = bytes_of(type);
  if (to == nullptr || base == nullptr || reinterpret_cast<uintptr_t>(base) % kAlign != 0 ||
      reinterpret_cast<uintptr_t>(to) % 64 != 0 || map.element_bytes == 0 || rank == 0 ||
      rank > kMaxTensorRank || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || !take_swizzle(swizzle, map)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  map.rank = uint8_t(rank);
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || sizes[i] > cuuint64_t{1} << 32 || box[i] == 0 || box[i] > kMaxBox ||
        steps[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    map.sizes[i] = sizes[i];
    map.box[i] = uint16_t(box[i]);
  }
  for (cuuint32_t i = 0; i + 1 < rank; ++i) {
    if (strides[i] % kAlign != 0 || strides[i] >= cuuint64_t{1} << 40) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    map.strides[i] = strides[i];
  }
  if (!inner_box_fits(map)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(to, 0, sizeof(*to));
  std::memcpy(to->opaque, &map, sizeof(map));
  return CUDA_SUCCESS;
}
