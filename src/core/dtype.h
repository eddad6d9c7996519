// Element types of tensors and files, and the half types' conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace snug {

// kSlope8: see ops/linear.h; no file has it.
enum class DType : uint8_t { kF32, kF16, kBF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool, kSlope8 };

size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  // "fp32", "bf16", ...
bool is_float(DType dtype);

float half_to_float(uint16_t bits);   // IEEE binary16, subnormals, infinities and NaN included
uint16_t float_to_half(float value);  // round to nearest even
inline float bfloat16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t float_to_bfloat16(float value);  // round to nearest even, NaN stays NaN

// The bits of an fp32 number as those of the nearest bf16 number, ties away from zero, and 16 more
// that say how far it is from that. Both together are exact; every NaN becomes the same.
struct FloatHalves {
  uint16_t upper = 0, lower = 0;
};
constexpr FloatHalves split_float(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0, 0};
  return {uint16_t((bits + 0x8000u) >> 16), uint16_t(bits)};
}
constexpr uint32_t join_float(FloatHalves halves) {
  return (uint32_t{halves.upper} << 16) + uint32_t(int32_t(int16_t(halves.lower)));
}

}  // namespace snug
