// How a CUtensorMap describes boxes of a tensor in the device's memory to the copy engine.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace emulated {

constexpr int kMaxTensorRank = 5;

// The first dimension's elements are next to each other.
struct TensorMap {
  std::byte* base;
  uint64_t sizes[kMaxTensorRank];        // in elements
  uint64_t strides[kMaxTensorRank - 1];  // in bytes, from the second dimension on
  uint16_t box[kMaxTensorRank];          // in elements
  uint8_t rank;
  uint8_t element_bytes;
  uint8_t swizzle_bytes;  // 0: none
};

TensorMap tensor_map_of(const CUtensorMap& map);

}  // namespace emulated
