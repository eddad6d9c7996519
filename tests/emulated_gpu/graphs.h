// Graphs of work: CUDA only names these types, so that they are what we make them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "emulated_gpu/runtime.h"

namespace emulated {

struct Work {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  std::function<void()> run;
  cudaMemsetParams fill = {};  // of a memset
};
Work fill_work(const cudaMemsetParams& fill);

}  // namespace emulated

struct CUgraphNode_st {
  cudaGraph_t graph;
  emulated::Work work;
  std::vector<cudaGraphNode_t> before, behind;  // without repetitions
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;  // in the order they were made
};

struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};

namespace emulated {

cudaGraphNode_t add_node(CUgraph_st& graph, Work work, std::span<const cudaGraphNode_t> before);
// Whether one of `last` is this node or, directly or not, waits for it.
bool done_with(std::span<const cudaGraphNode_t> last, cudaGraphNode_t node);

}  // namespace emulated
