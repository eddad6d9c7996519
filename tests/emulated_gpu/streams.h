// Streams, and work in their order.
#pragma once

#include <memory>
#include <vector>

#include "emulated_gpu/capture.h"
#include "emulated_gpu/graphs.h"

struct CUstream_st {
  bool blocks = true;  // the null stream waits for it
  // While it is being captured, what its next node waits for.
  std::shared_ptr<emulated::Capture> capture;
  std::vector<cudaGraphNode_t> last;
};

namespace emulated {

// nullptr is the null stream's name.
CUstream_st& stream_at(cudaStream_t stream);

cudaError_t submit_work(cudaStream_t stream, Work work);

}  // namespace emulated
