// The header of a safetensors file: whatever the bytes, parsing ends in a header that accounts for
// every byte of the data, or in an Error. The first two bytes give the size of the data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint64_t data_bytes = uint64_t(data[0]) | uint64_t(data[1]) << 8;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    const auto header = snug::parse_safetensors_header(text, data_bytes, "fuzz.safetensors");
    uint64_t position = 8 + text.size();
    for (const snug::TensorEntry& tensor : header.tensors) {
      uint64_t elements = 1;
      for (const int64_t dimension : tensor.shape) elements *= uint64_t(dimension);
      const bool holds = tensor.begin == position && tensor.elements() == elements &&
                         header.find(tensor.name) == &tensor;
      if (!holds) std::abort();
      position = tensor.end;
    }
    if (position != 8 + text.size() + data_bytes) std::abort();
  } catch (const snug::Error&) {
  }
  return 0;
}
