#include "emulated_gpu/product_values.h"

#include <bit>
#include <cstring>
#include <vector>

#include "core/dtype.h"

namespace emulated {
namespace {

// The value of each of fp16's bit patterns: looked up faster than made.
const float* half_values() {
  static const std::vector<float> values = [] {
    std::vector<float> all(size_t{1} << 16);
    for (size_t bits = 0; bits < all.size(); ++bits)
      all[bits] = snug::half_to_float(uint16_t(bits));
    return all;
  }();
  return values.data();
}

}  // namespace

size_t value_bytes(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_8I:
      return 1;
    case CUDA_R_16BF:
    case CUDA_R_16F:
      return 2;
    default:
      return 4;
  }
}

void read_values(cudaDataType_t type, const void* from, int64_t begin, std::span<float> values) {
  float* const to = values.data();
  const size_t count = values.size();
  if (type == CUDA_R_16BF) {
    const auto* const bits = static_cast<const uint16_t*>(from) + begin;
#pragma omp simd
    for (size_t i = 0; i < count; ++i) to[i] = snug::bfloat16_to_float(bits[i]);
  } else if (type == CUDA_R_16F) {
    const auto* const bits = static_cast<const uint16_t*>(from) + begin;
    const float* const table = half_values();
    for (size_t i = 0; i < count; ++i) to[i] = table[bits[i]];
  } else if (type == CUDA_R_8I) {
    const auto* const bytes = static_cast<const int8_t*>(from) + begin;
#pragma omp simd
    for (size_t i = 0; i < count; ++i) to[i] = bytes[i];
  } else {
    std::memcpy(to, static_cast<const float*>(from) + begin, values.size_bytes());
  }
}

void write_values(cudaDataType_t type, std::span<const float> values, void* to, int64_t begin) {
  if (type == CUDA_R_16BF) {
    auto* const bits = static_cast<uint16_t*>(to) + begin;
    for (size_t i = 0; i < values.size(); ++i) bits[i] = snug::float_to_bfloat16(values[i]);
  } else if (type == CUDA_R_16F) {
    auto* const bits = static_cast<uint16_t*>(to) + begin;
    for (size_t i = 0; i < values.size(); ++i) bits[i] = snug::float_to_half(values[i]);
  } else {
    std::memcpy(static_cast<float*>(to) + begin, values.data(), values.size_bytes());
  }
}

void round_to_tf32(std::span<float> values) {
  for (float& value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) continue;  // NaN stays NaN
    value = std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
  }
}

}  // namespace emulated
