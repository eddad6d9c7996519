// Two values of a 16-bit type in one register, the first in the low half.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace snug::cuda {

template <class T>
__device__ __forceinline__ uint32_t packed(float first, float second) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&bits, &pair, 4);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&bits, &pair, 4);
  }
  return bits;
}

template <class T>
__device__ __forceinline__ float2 unpacked(uint32_t bits) {
  if constexpr (std::is_same_v<T, __half>) {
    __half2 pair;
    memcpy(&pair, &bits, 4);
    return __half22float2(pair);
  } else {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
  }
}

// Four values in two registers.
template <class T>
__device__ __forceinline__ uint2 packed(float4 four) {
  return {packed<T>(four.x, four.y), packed<T>(four.z, four.w)};
}
template <class T>
__device__ __forceinline__ float4 unpacked(uint2 bits) {
  const float2 low = unpacked<T>(bits.x), high = unpacked<T>(bits.y);
  return {low.x, low.y, high.x, high.y};
}

}  // namespace snug::cuda
