// A pickle of torch.save: whatever the bytes, reading ends in values that refer to each other and
// to storages that hold their tensors, or in an Error.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "model/tensor_view.h"
#include "model/unpickler.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  snug::Unpickler unpickler(
      [&](uint64_t offset, std::span<std::byte> out) {
        const size_t count = offset < size ? std::min(out.size(), size - size_t(offset)) : 0;
        if (count > 0) std::memcpy(out.data(), data + offset, count);
        return count;
      },
      "fuzz.bin");
  try {
    const snug::PickleValue& root = unpickler.load();
    for (const uint32_t index : root.items) unpickler.at(index);
    for (const snug::PickleTensor& tensor : unpickler.tensors()) {
      const auto& storage = unpickler.storages().at(tensor.storage);
      if (!snug::view_mismatch(tensor.shape, tensor.strides, tensor.first, storage.elements)
               .empty()) {
        std::abort();
      }
    }
  } catch (const snug::Error&) {
  }
  return 0;
}
