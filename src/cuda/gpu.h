// One NVIDIA GPU: opened, described, and its memory as the driver counts it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace snug::cuda {

bool has_gpu();  // that a driver here can use

struct DeviceMemory {
  uint64_t total_bytes = 0;  // of the card, as CUDA may use it
  uint64_t used_bytes = 0;   // by everybody
};

class Gpu {
 public:
  // "cuda" or "cuda:N". Creates the context. Errors (kDevice) say what is missing: driver, GPU,
  // capability 7.5.
  explicit Gpu(const std::string& name);
  ~Gpu();
  Gpu(const Gpu&) = delete;

  int ordinal() const { return ordinal_; }
  std::string name() const;                            // "cuda:0"
  const std::string& model() const { return model_; }  // "NVIDIA H200"
  int capability() const { return capability_; }       // 90 for 9.0
  int multiprocessors() const { return multiprocessors_; }
  std::string versions() const;  // of the driver's CUDA and the one snug was built with
  bool has_bf16() const { return capability_ >= 80; }
  cudaStream_t stream() const { return stream_; }

  uint64_t neighbours_bytes() const { return neighbours_bytes_; }  // used before this process came
  DeviceMemory memory() const;                                     // now
  uint64_t process_bytes() const;                                  // used now, less the neighbours'

 private:
  int ordinal_ = 0;
  int capability_ = 0, multiprocessors_ = 0;
  std::string model_;
  uint64_t neighbours_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
};

// Of the current device.
struct DeviceLimits {
  int capability = 0;  // 10 * major + minor
  int multiprocessors = 1;
  size_t shared_bytes = 0;  // a block may ask for
};
DeviceLimits device_limits();

}  // namespace snug::cuda
