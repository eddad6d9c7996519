// Copies between the device and pinned memory of the host that run beside kernels, on a stream of
// their own. Events alone order them, so capturing the main stream takes the copies along as a
// branch of the graph; whatever is started must be awaited before the capture ends.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace snug::cuda {

class CopyStream {
 public:
  explicit CopyStream(size_t slots);  // 0: no stream
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;

  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  // Begins when `main` has done all it was given before; copies run one after the other.
  void start(size_t slot, const Copy& copy, cudaStream_t main);
  // What `main` is given next begins when the slot's last copy has ended.
  void await(size_t slot, cudaStream_t main);

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;    // main has come to a copy's start; recorded anew for each
  std::vector<cudaEvent_t> done_;  // by slot
};

}  // namespace snug::cuda
