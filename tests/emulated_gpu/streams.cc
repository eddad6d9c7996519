// What is submitted is done at once, so that streams never wait; only the rules of capture make
// them differ.
#include "emulated_gpu/streams.h"

#include <utility>

#include "emulated_gpu/allocations.h"
#include "emulated_gpu/errors.h"

namespace emulated {
namespace {

cudaError_t make_stream(cudaStream_t* stream, bool blocks) {
  if (const cudaError_t status = make_context(); status != cudaSuccess) return status;
  *stream = new CUstream_st{.blocks = blocks, .capture = {}, .last = {}};
  return cudaSuccess;
}

cudaError_t synchronize(cudaStream_t stream) {
  if (stream == nullptr) return refuse_null_stream();
  if (!stream->capture) return cudaSuccess;
  stream->capture->spoiled = true;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

CUstream_st& stream_at(cudaStream_t stream) {
  static CUstream_st null_stream;
  return stream == nullptr ? null_stream : *stream;
}

cudaError_t submit_work(cudaStream_t stream, Work work) {
  if (stream == nullptr) {
    const cudaError_t status = refuse_null_stream();
    if (status != cudaSuccess) return status;
  }
  CUstream_st& to = stream_at(stream);
  if (!to.capture) return do_now(work.run);
  if (to.capture->spoiled) return cudaErrorStreamCaptureInvalidated;
  to.last = {add_node(*to.capture->graph, std::move(work), to.last)};
  return cudaSuccess;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> work, cudaGraphNodeType type) {
  return answer([&] { return submit_work(stream, {.type = type, .run = std::move(work)}); });
}

}  // namespace emulated

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return emulated::answer([&] { return emulated::make_stream(stream, true); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return emulated::answer([&] {
    if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    return emulated::make_stream(stream, flags == cudaStreamDefault);
  });
}

// It is gone, also behind work that failed.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return emulated::remember(cudaErrorInvalidResourceHandle);
  emulated::leave_capture(stream);
  delete stream;
  return emulated::remember(emulated::lasting_error());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return emulated::answer([&] { return emulated::synchronize(stream); });
}
