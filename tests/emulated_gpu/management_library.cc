// libnvidia-ml.so.1 as far as it says how much memory other processes hold: those that the
// environment speaks of. Declared here, since toolkits need not come with its header.
#include "emulated_gpu/runtime.h"

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kVersionMismatch = 25;

struct MemoryInfo {  // nvmlMemory_v2_t
  unsigned version;
  unsigned long long total, reserved, free, used;
};

}  // namespace

extern "C" {

int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  static int device;  // all of them hold the same
  if (bus_id == nullptr || handle == nullptr) return kInvalidArgument;
  *handle = &device;
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo_v2(void* handle, MemoryInfo* info) {
  if (handle == nullptr || info == nullptr) return kInvalidArgument;
  if (info->version != (unsigned(sizeof(MemoryInfo)) | 2u << 24)) return kVersionMismatch;
  info->total = emulated::device().memory_bytes;
  info->reserved = 0;
  info->used = emulated::device().neighbours_bytes;
  info->free = info->total < info->used ? 0 : info->total - info->used;
  return kSuccess;
}
}
