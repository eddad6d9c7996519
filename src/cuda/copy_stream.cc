#include "cuda/copy_stream.h"

#include "cuda/check.h"

namespace snug::cuda {

CopyStream::CopyStream(size_t slots) : done_(slots) {
  if (slots == 0) return;
  SNUG_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  SNUG_CUDA(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
  for (cudaEvent_t& event : done_) {
    SNUG_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
}

CopyStream::~CopyStream() {
  for (const cudaEvent_t event : done_) cudaEventDestroy(event);
  if (ready_ != nullptr) cudaEventDestroy(ready_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CopyStream::start(size_t slot, const Copy& copy, cudaStream_t main) {
  SNUG_CUDA(cudaEventRecord(ready_, main));
  SNUG_CUDA(cudaStreamWaitEvent(stream_, ready_, 0));
  SNUG_CUDA(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, stream_));
  SNUG_CUDA(cudaEventRecord(done_[slot], stream_));
}

void CopyStream::await(size_t slot, cudaStream_t main) {
  SNUG_CUDA(cudaStreamWaitEvent(main, done_[slot], 0));
}

}  // namespace snug::cuda
