// Streams being captured into a graph, and what CUDA forbids meanwhile. Whoever breaks a rule gets
// an error and spoils the capture, which then gives no graph.
#pragma once

#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "emulated_gpu/graphs.h"

namespace emulated {

struct Capture {
  std::unique_ptr<CUgraph_st> graph = std::make_unique<CUgraph_st>();
  std::vector<cudaStream_t> streams;  // the first is where it began
  std::thread::id thread;
  cudaStreamCaptureMode mode;
  bool spoiled = false, over = false;
};

// For calls that may wait for all the device does.
cudaError_t refuse_while_capturing();
// For calls on the null stream, which waits for all streams but those that say otherwise.
cudaError_t refuse_null_stream();

// What the stream does from here on also waits for these nodes of the capture.
cudaError_t join(cudaStream_t stream, const std::shared_ptr<Capture>& capture,
                 std::span<const cudaGraphNode_t> nodes);
// Of a stream about to be destroyed.
void leave_capture(cudaStream_t stream);

}  // namespace emulated
