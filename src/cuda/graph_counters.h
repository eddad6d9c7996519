// What cuBLASLt's kernels count their pieces in, in a CUDA graph. Algorithms whose blocks share
// tiles of the result count in a small workspace, which the library clears before each of them: a
// node of its own between two kernels, which both wait for it. Here every product of a graph counts
// in a slice of its own; the nodes are taken out again, and one at the graph's beginning clears all
// slices. Graphs that share a region must not run at the same time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace snug::cuda {

class GraphCounters {
 public:
  // Larger workspaces hold more than counters.
  static constexpr size_t kMostBytes = size_t{16} << 10;

  explicit GraphCounters(std::span<std::byte> region)
      : region_(region) {}  // device memory, 256-byte aligned

  // Another graph is going to be captured: all slices are free.
  void begin() { used_ = 0; }
  // At least so many bytes for one product of the graph, which clears them before anything else;
  // empty: there is no room.
  std::span<std::byte> take(size_t bytes);
  // Clears of slices that are the first thing a graph does.
  int64_t leading_clears(cudaGraph_t graph) const;
  // Takes the clears of slices out of a captured graph; returns their number.
  int64_t hoist_clears(cudaGraph_t graph) const;

 private:
  bool clears_slice(cudaGraphNode_t node) const;

  std::span<std::byte> region_;
  size_t used_ = 0;
};

// What work clears where it is captured into a graph of its own.
struct Fills {
  int64_t hoisted = 0;  // where it counts in a slice, first of all
  int64_t left = 0;
};
// Nothing on the null stream, which cannot be captured. Without counters nothing is hoisted.
Fills fills_of(cudaStream_t stream, const std::function<void()>& work, GraphCounters* counters);

// The nodes of a graph that fill memory.
std::vector<cudaGraphNode_t> fill_nodes(cudaGraph_t graph);
// Bytes that such a node fills.
size_t fill_bytes(cudaGraphNode_t node);

}  // namespace snug::cuda
