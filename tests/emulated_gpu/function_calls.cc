// What the runtime knows about kernels and about the driver's functions. A kernel here has its body
// for Hopper, and with it static shared memory, where the device is one.
#include <cuda.h>

#include <algorithm>
#include <cstring>

#include "emulated_gpu/errors.h"

namespace emulated {
namespace {

constexpr size_t kSharedBytes = size_t{48} << 10;  // without asking for more
constexpr int kTensorMapsSince = 12000;

size_t most_shared_bytes = kSharedBytes;

cudaError_t find_entry(const char* symbol, int version, void** function,
                       cudaDriverEntryPointQueryResult* result) {
  return answer([&] {
    const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    const bool found = known && device().driver >= kTensorMapsSince && version >= kTensorMapsSince;
    *function = found ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    if (result != nullptr) {
      *result = found   ? cudaDriverEntryPointSuccess
                : known ? cudaDriverEntryPointVersionNotSufficent
                        : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
  });
}

}  // namespace

size_t dynamic_shared_limit() { return most_shared_bytes; }

}  // namespace emulated

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return emulated::find_entry(symbol, CUDART_VERSION, function, result);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned int version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return emulated::find_entry(symbol, int(version), function, result);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return emulated::answer([&] {
    *attributes = {};
    attributes->sharedSizeBytes = emulated::device().capability == 90 ? 1 : 0;
    attributes->maxDynamicSharedSizeBytes = int(emulated::dynamic_shared_limit());
    attributes->maxThreadsPerBlock = 1024;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  return emulated::answer([&] {
    if (value < 0) return cudaErrorInvalidValue;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;  // a wish
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
        size_t(value) > emulated::largest_shared_bytes()) {
      return cudaErrorInvalidValue;
    }
    emulated::most_shared_bytes = std::max(emulated::most_shared_bytes, size_t(value));
    return cudaSuccess;
  });
}
