// Lifetimes and offsets. A pure function of a graph and the capacity of a micro-batch: it allocates
// nothing, so planning for a machine that is not here costs nothing.
//
//   MemoryPlan plan = plan_memory(graph, {.tokens = 1024, .sequences = 8, .longest = 128},
//   {.threads = 2}); float* y = base + plan.values[y_id].offset;      // valid from node .first to
//   node .last
#pragma once

#include <cstddef>
#include <vector>

#include "core/memory.h"
#include "graph/graph.h"

namespace snug {

struct Placement {
  size_t offset = 0;
  size_t bytes = 0;  // 0: not placed here (parameters, gradients, scalars, never used)
  int first = -1;    // nodes, inclusive
  int last = -1;

  bool alive_with(const Placement& other) const {
    return first <= other.last && other.first <= last;
  }
};

struct MemoryPlan {
  Dims capacity;
  std::vector<Placement> values;      // by ValueId
  std::vector<Placement> workspaces;  // by node
  size_t bytes = 0;                   // of the region they all lie in
  size_t live_bytes = 0;  // the largest sum of bytes alive at one node: no plan can be smaller
  int peak_node = 0;      // where that is
};

MemoryPlan plan_memory(const Graph& graph, const Dims& capacity, const Device& device);

// Its live_bytes alone, which costs much less than offsets.
size_t live_memory(const Graph& graph, const Dims& capacity, const Device& device);

}  // namespace snug
