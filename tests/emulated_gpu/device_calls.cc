// The calls that say what the device is.
#include <algorithm>
#include <cstdio>

#include "emulated_gpu/allocations.h"
#include "emulated_gpu/capture.h"
#include "emulated_gpu/errors.h"

namespace emulated {
namespace {

thread_local int current_device = 0;

cudaError_t check_ordinal(int ordinal) {
  return ordinal >= 0 && ordinal < device().count ? cudaSuccess : cudaErrorInvalidDevice;
}

}  // namespace

size_t largest_shared_bytes() {
  switch (device().capability) {
    case 75:
      return size_t{64} << 10;
    case 80:
    case 87:
      return size_t{163} << 10;
    case 90:
    case 100:
    case 103:
      return size_t{227} << 10;
    default:
      return size_t{99} << 10;
  }
}

}  // namespace emulated

// Work that has failed does not change how many devices there are.
cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t lasting = emulated::lasting_error();
  *count = 0;
  if (lasting == cudaErrorInsufficientDriver || lasting == cudaErrorNoDevice) {
    return emulated::remember(lasting);
  }
  *count = emulated::device().count;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = emulated::device().driver;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* ordinal) {
  return emulated::answer([&] {
    *ordinal = emulated::current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int ordinal) {
  return emulated::answer([&] {
    const cudaError_t status = emulated::check_ordinal(ordinal);
    if (status != cudaSuccess) return status;
    emulated::current_device = ordinal;
    return emulated::make_context();
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  return emulated::answer([&] {
    const cudaError_t status = emulated::check_ordinal(ordinal);
    if (status != cudaSuccess) return status;
    const emulated::Device& device = emulated::device();
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "Emulated GPU");
    properties->totalGlobalMem = device.memory_bytes;
    properties->major = device.capability / 10;
    properties->minor = device.capability % 10;
    properties->multiProcessorCount = device.multiprocessors;
    properties->sharedMemPerBlock = size_t{48} << 10;
    properties->sharedMemPerBlockOptin = emulated::largest_shared_bytes();
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  return emulated::answer([&] {
    const cudaError_t status = emulated::check_ordinal(ordinal);
    if (status != cudaSuccess) return status;
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = emulated::device().capability / 10;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = emulated::device().capability % 10;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = emulated::device().multiprocessors;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = int(emulated::largest_shared_bytes());
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* bus_id, int room, int ordinal) {
  return emulated::answer([&] {
    const cudaError_t status = emulated::check_ordinal(ordinal);
    if (status != cudaSuccess) return status;
    const int length =
        std::snprintf(bus_id, size_t(std::max(room, 0)), "0000:%02X:00.0", unsigned(ordinal + 1));
    return length < room ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return emulated::answer([] { return emulated::refuse_while_capturing(); });
}
