// Events: the time when they were recorded, or, in a capture, what had been captured by then.
#include <chrono>
#include <optional>

#include "emulated_gpu/errors.h"
#include "emulated_gpu/streams.h"

struct CUevent_st {
  bool timed = true;
  std::optional<std::chrono::steady_clock::time_point> time;
  // Of the capture in which it was last recorded, if that was in one.
  std::shared_ptr<emulated::Capture> capture;
  std::vector<cudaGraphNode_t> last;
};

namespace emulated {
namespace {

cudaError_t make_event(cudaEvent_t* event, unsigned flags) {
  if ((flags & ~unsigned(cudaEventDisableTiming | cudaEventBlockingSync)) != 0) {
    return cudaErrorInvalidValue;
  }
  *event = new CUevent_st{
      .timed = (flags & cudaEventDisableTiming) == 0, .time = {}, .capture = {}, .last = {}};
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t event, cudaStream_t stream) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream == nullptr) {
    const cudaError_t status = refuse_null_stream();
    if (status != cudaSuccess) return status;
  }
  const CUstream_st& from = stream_at(stream);
  if (from.capture && from.capture->spoiled) return cudaErrorStreamCaptureInvalidated;
  event->capture = from.capture;
  event->last = from.last;
  event->time.reset();
  if (!from.capture) event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t wait(cudaStream_t stream, cudaEvent_t event) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->capture && !event->capture->over) return join(stream, event->capture, event->last);
  if (event->capture) return cudaErrorCapturedEvent;  // that work is in a graph by now
  const std::shared_ptr<Capture>& capture = stream_at(stream).capture;
  if (!capture || !event->time) return cudaSuccess;
  capture->spoiled = true;
  return cudaErrorStreamCaptureIsolation;
}

// For the host: whether the event has come.
cudaError_t look_at(cudaEvent_t event) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (!event->capture) return cudaSuccess;
  event->capture->spoiled = true;
  return cudaErrorCapturedEvent;
}

cudaError_t elapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  for (const cudaEvent_t event : {begin, end}) {
    const cudaError_t status = look_at(event);
    if (status != cudaSuccess) return status;
    if (!event->timed || !event->time) return cudaErrorInvalidResourceHandle;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *begin->time).count();
  return cudaSuccess;
}

}  // namespace
}  // namespace emulated

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return emulated::answer([&] { return emulated::make_event(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return emulated::answer([&] { return emulated::make_event(event, flags); });
}

// It is gone, also behind work that failed.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return emulated::remember(cudaErrorInvalidResourceHandle);
  delete event;
  return emulated::remember(emulated::lasting_error());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return emulated::answer([&] { return emulated::record(event, stream); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return emulated::answer([&] { return emulated::wait(stream, event); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return emulated::answer([&] { return emulated::look_at(event); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return emulated::answer([&] { return emulated::look_at(event); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return emulated::answer([&] { return emulated::elapsed(milliseconds, begin, end); });
}
