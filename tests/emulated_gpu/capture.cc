#include "emulated_gpu/capture.h"

#include <algorithm>

#include "emulated_gpu/errors.h"
#include "emulated_gpu/streams.h"

namespace emulated {
namespace {

// Stays to the end, as streams of static objects may.
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto& captures = *new std::vector<std::shared_ptr<Capture>>;
  return captures;
}

void end(const std::shared_ptr<Capture>& capture) {
  capture->over = true;
  for (const cudaStream_t stream : capture->streams) {
    stream->capture.reset();
    stream->last.clear();
  }
  std::erase(captures(), capture);
}

// Whether all that other streams have done in the capture comes before what its own does next.
bool joined(const Capture& capture) {
  const auto& own = capture.streams.front()->last;
  return std::ranges::all_of(capture.streams, [&](cudaStream_t stream) {
    return std::ranges::all_of(stream->last,
                               [&](cudaGraphNode_t node) { return done_with(own, node); });
  });
}

cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture) return cudaErrorIllegalState;
  stream->capture = std::make_shared<Capture>();
  stream->capture->streams = {stream};
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->mode = mode;
  captures().push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream_at(stream).capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->streams.front() != stream) {
    capture->spoiled = true;
    return cudaErrorStreamCaptureUnmatched;
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const bool all_joined = joined(*capture);
  end(capture);
  if (capture->spoiled) return cudaErrorStreamCaptureInvalidated;
  if (!all_joined) return cudaErrorStreamCaptureUnjoined;
  *graph = capture->graph.release();
  return cudaSuccess;
}

}  // namespace

cudaError_t refuse_while_capturing() {
  cudaError_t status = cudaSuccess;
  for (const auto& capture : captures()) {
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal &&
         capture->thread == std::this_thread::get_id())) {
      capture->spoiled = true;
      status = cudaErrorStreamCaptureUnsupported;
    }
  }
  return status;
}

cudaError_t refuse_null_stream() {
  for (const auto& capture : captures()) {
    if (std::ranges::any_of(capture->streams, [](cudaStream_t stream) { return stream->blocks; })) {
      capture->spoiled = true;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  return cudaSuccess;
}

cudaError_t join(cudaStream_t stream, const std::shared_ptr<Capture>& capture,
                 std::span<const cudaGraphNode_t> nodes) {
  if (capture->spoiled) return cudaErrorStreamCaptureInvalidated;
  if (stream == nullptr || (stream->capture && stream->capture != capture)) {
    capture->spoiled = true;
    if (stream == nullptr) return cudaErrorStreamCaptureImplicit;
    stream->capture->spoiled = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (!stream->capture) {
    stream->capture = capture;
    capture->streams.push_back(stream);
  }
  for (const cudaGraphNode_t node : nodes) {
    if (std::ranges::find(stream->last, node) == stream->last.end()) stream->last.push_back(node);
  }
  return cudaSuccess;
}

void leave_capture(cudaStream_t stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return;
  capture->spoiled = true;
  if (capture->streams.front() == stream) {
    end(capture);
  } else {
    std::erase(capture->streams, stream);
  }
}

}  // namespace emulated

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return emulated::answer([&] { return emulated::begin_capture(stream, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return emulated::answer([&] { return emulated::end_capture(stream, graph); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return emulated::answer([&] {
    const auto& capture = emulated::stream_at(stream).capture;
    *status = !capture           ? cudaStreamCaptureStatusNone
              : capture->spoiled ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}
