// Time between two points of a stream, as the device counts it.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.h"

namespace snug::cuda {

class DeviceTimer {
 public:
  explicit DeviceTimer(cudaStream_t stream) : stream_(stream) {
    SNUG_CUDA(cudaEventCreate(&begin_));
    SNUG_CUDA(cudaEventCreate(&end_));
  }
  ~DeviceTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  DeviceTimer(const DeviceTimer&) = delete;

  void start() { SNUG_CUDA(cudaEventRecord(begin_, stream_)); }
  // Waits for what was launched since start(), and gives milliseconds.
  float stop() {
    SNUG_CUDA(cudaEventRecord(end_, stream_));
    SNUG_CUDA(cudaEventSynchronize(end_));
    float milliseconds = 0;
    SNUG_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace snug::cuda
