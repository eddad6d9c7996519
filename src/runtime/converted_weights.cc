#include "runtime/converted_weights.h"

#include <cstring>
#include <vector>

namespace snug {

void ConvertedWeights::read(size_t offset, std::span<std::byte> to) const {
  std::vector<uint16_t> halves(to.size() / sizeof(float));
  memory_.read(offset / 2, std::as_writable_bytes(std::span(halves)));
  for (size_t i = 0; i < halves.size(); ++i) {
    const float value =
        dtype_ == DType::kBF16 ? bfloat16_to_float(halves[i]) : half_to_float(halves[i]);
    std::memcpy(to.data() + i * sizeof(float), &value, sizeof(float));
  }
}

void ConvertedWeights::write(size_t offset, std::span<const std::byte> from) {
  std::vector<uint16_t> halves(from.size() / sizeof(float));
  for (size_t i = 0; i < halves.size(); ++i) {
    float value = 0;
    std::memcpy(&value, from.data() + i * sizeof(float), sizeof(float));
    halves[i] = dtype_ == DType::kBF16 ? float_to_bfloat16(value) : float_to_half(value);
  }
  memory_.write(offset / 2, std::as_bytes(std::span(halves)));
}

}  // namespace snug
