// A file of torch.save, zip or legacy: whatever the bytes, opening and reading all of it ends in
// values or in an Error.
#include <vector>

#include "core/error.h"
#include "memory_file.h"
#include "model/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile memory(data, size);
  try {
    const snug::TorchFile file(memory.path());
    for (const snug::TensorEntry& tensor : file.tensors()) {
      if (tensor.bytes() > 8 * size) std::abort();  // no more than the file holds, in any order
      std::vector<std::byte> bytes(tensor.bytes());
      file.read_bytes(tensor, 0, bytes);
    }
  } catch (const snug::Error&) {
  }
  return 0;
}
