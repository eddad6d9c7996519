#include "core/dtype.h"

#include "core/error.h"

namespace snug {
namespace {

struct DTypeInfo {
  std::string_view name;
  size_t bytes;
  bool is_float;
};

DTypeInfo info(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {"fp32", 4, true};
    case DType::kF16:
      return {"fp16", 2, true};
    case DType::kBF16:
      return {"bf16", 2, true};
    case DType::kF64:
      return {"fp64", 8, true};
    case DType::kI64:
      return {"int64", 8, false};
    case DType::kI32:
      return {"int32", 4, false};
    case DType::kI16:
      return {"int16", 2, false};
    case DType::kI8:
      return {"int8", 1, false};
    case DType::kU8:
      return {"uint8", 1, false};
    case DType::kBool:
      return {"bool", 1, false};
    case DType::kSlope8:
      return {"slope8", 1, false};
  }
  SNUG_CHECK(!"unknown dtype");
  return {};
}

}  // namespace

size_t dtype_bytes(DType dtype) { return info(dtype).bytes; }
std::string_view dtype_name(DType dtype) { return info(dtype).name; }
bool is_float(DType dtype) { return info(dtype).is_float; }

float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = float(mantissa) * 0x1p-24f;  // subnormal: mantissa × 2^-24, exact in fp32
  return sign ? -magnitude : magnitude;
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds past 65504
  if (magnitude <
      0x38800000) {  // below 2^-14: adding 2^-1·2^... lines the subnormal up with fp32's last bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | uint16_t(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | uint16_t((rounded - 0x38000000u) >> 13);
}

uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace snug
