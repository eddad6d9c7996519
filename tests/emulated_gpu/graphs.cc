// A graph runs its nodes one by one: of those that wait for nothing any more, always the one made
// first.
#include "emulated_gpu/graphs.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "emulated_gpu/copies.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/streams.h"

namespace emulated {
namespace {

using Nodes = std::vector<cudaGraphNode_t>;

bool contains(const Nodes& nodes, cudaGraphNode_t node) {
  return std::ranges::find(nodes, node) != nodes.end();
}

void connect(cudaGraphNode_t from, cudaGraphNode_t to) {
  from->behind.push_back(to);
  to->before.push_back(from);
}

Nodes nodes_of(const CUgraph_st& graph, bool only_roots) {
  Nodes nodes;
  for (const auto& node : graph.nodes) {
    if (!only_roots || node->before.empty()) nodes.push_back(node.get());
  }
  return nodes;
}

// Empty where nodes wait for each other.
Nodes in_order(const CUgraph_st& graph) {
  std::unordered_map<cudaGraphNode_t, size_t> index, missing;
  std::priority_queue<size_t, std::vector<size_t>, std::greater<size_t>> ready;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    index[graph.nodes[i].get()] = i;
    missing[graph.nodes[i].get()] = graph.nodes[i]->before.size();
    if (graph.nodes[i]->before.empty()) ready.push(i);
  }
  Nodes order;
  while (!ready.empty()) {
    const cudaGraphNode_t node = graph.nodes[ready.top()].get();
    ready.pop();
    order.push_back(node);
    for (const cudaGraphNode_t later : node->behind) {
      if (--missing[later] == 0) ready.push(index[later]);
    }
  }
  return order.size() == graph.nodes.size() ? order : Nodes();
}

// As CUDA lists nodes: without room for them their number, else as many as there is room for.
cudaError_t list(const Nodes& found, cudaGraphNode_t* to, size_t* count) {
  if (count == nullptr) return cudaErrorInvalidValue;
  if (to != nullptr) {
    const size_t given = std::min(*count, found.size());
    std::copy_n(found.begin(), given, to);
    std::fill(to + given, to + *count, nullptr);
    *count = given;
  } else {
    *count = found.size();
  }
  return cudaSuccess;
}
// All edges are plain.
cudaError_t list(const Nodes& found, cudaGraphNode_t* to, cudaGraphEdgeData* edges, size_t* count) {
  const cudaError_t status = list(found, to, count);
  if (status == cudaSuccess && to != nullptr && edges != nullptr) {
    std::fill(edges, edges + *count, cudaGraphEdgeData{});
  }
  return status;
}

cudaError_t add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
  if (from->graph != graph || to->graph != graph || from == to || contains(to->before, from)) {
    return cudaErrorInvalidValue;
  }
  connect(from, to);
  return cudaSuccess;
}

}  // namespace

Work fill_work(const cudaMemsetParams& fill) {
  return {cudaGraphNodeTypeMemset, [fill] { do_fill(fill); }, fill};
}

cudaGraphNode_t add_node(CUgraph_st& graph, Work work, std::span<const cudaGraphNode_t> before) {
  graph.nodes.push_back(std::make_unique<CUgraphNode_st>(
      CUgraphNode_st{.graph = &graph, .work = std::move(work), .before = {}, .behind = {}}));
  const cudaGraphNode_t node = graph.nodes.back().get();
  for (const cudaGraphNode_t earlier : before) connect(earlier, node);
  return node;
}

bool done_with(std::span<const cudaGraphNode_t> last, cudaGraphNode_t node) {
  Nodes left(last.begin(), last.end());
  std::unordered_set<cudaGraphNode_t> seen(left.begin(), left.end());
  while (!left.empty()) {
    const cudaGraphNode_t now = left.back();
    left.pop_back();
    if (now == node) return true;
    for (const cudaGraphNode_t earlier : now->before) {
      if (seen.insert(earlier).second) left.push_back(earlier);
    }
  }
  return false;
}

}  // namespace emulated

// Edges carry data since CUDA 12.3, under names of their own until 13.
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* to,
                                         cudaGraphEdgeData* edges, size_t* count) {
#else
cudaError_t cudaGraphNodeGetDependencies_v2(cudaGraphNode_t node, cudaGraphNode_t* to,
                                            cudaGraphEdgeData* edges, size_t* count) {
#endif
  return emulated::answer([&] { return emulated::list(node->before, to, edges, count); });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* to,
                                           cudaGraphEdgeData* edges, size_t* count) {
#else
cudaError_t cudaGraphNodeGetDependentNodes_v2(cudaGraphNode_t node, cudaGraphNode_t* to,
                                              cudaGraphEdgeData* edges, size_t* count) {
#endif
  return emulated::answer([&] { return emulated::list(node->behind, to, edges, count); });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* edges,
                                     size_t count) {
#else
cudaError_t cudaGraphAddDependencies_v2(cudaGraph_t graph, const cudaGraphNode_t* from,
                                        const cudaGraphNode_t* to, const cudaGraphEdgeData* edges,
                                        size_t count) {
#endif
  return emulated::answer([&] {
    if (edges != nullptr) return cudaErrorInvalidValue;  // none but plain ones here
    for (size_t i = 0; i < count; ++i) {
      const cudaError_t status = emulated::add_edge(graph, from[i], to[i]);
      if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return emulated::answer(
      [&] { return emulated::list(emulated::nodes_of(*graph, false), nodes, count); });
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return emulated::answer(
      [&] { return emulated::list(emulated::nodes_of(*graph, true), nodes, count); });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return emulated::answer([&] {
    *type = node->work.type;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* fill) {
  return emulated::answer([&] {
    if (node->work.type != cudaGraphNodeTypeMemset) return cudaErrorInvalidValue;
    *fill = node->work.fill;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* before, size_t count,
                                   const cudaMemsetParams* fill) {
  return emulated::answer([&] {
    const cudaError_t status = emulated::check_fill(*fill);
    if (status != cudaSuccess) return status;
    *node = emulated::add_node(*graph, emulated::fill_work(*fill), {});
    for (size_t i = 0; i < count; ++i) {
      const cudaError_t added = emulated::add_edge(graph, before[i], *node);
      if (added != cudaSuccess) return added;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  return emulated::answer([&] {
    for (const cudaGraphNode_t earlier : node->before) std::erase(earlier->behind, node);
    for (const cudaGraphNode_t later : node->behind) std::erase(later->before, node);
    std::erase_if(node->graph->nodes, [&](const auto& each) { return each.get() == node; });
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long) {
  return emulated::answer([&] {
    const std::vector<cudaGraphNode_t> order = emulated::in_order(*graph);
    if (order.size() != graph->nodes.size()) return cudaErrorInvalidValue;
    auto made = std::make_unique<CUgraphExec_st>();
    for (const cudaGraphNode_t node : order) made->work.push_back(node->work.run);
    *instance = made.release();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t instance, cudaStream_t) {
  return emulated::answer(
      [&] { return instance == nullptr ? cudaErrorInvalidValue : cudaSuccess; });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
  return emulated::answer([&] {
    if (instance == nullptr) return cudaErrorInvalidValue;
    // A graph within a graph: nothing here needs it.
    if (emulated::stream_at(stream).capture) return cudaErrorStreamCaptureUnsupported;
    for (const auto& work : instance->work) {
      const cudaError_t status = emulated::do_now(work);
      if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
  });
}

// What is destroyed is gone, also behind work that failed.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  delete instance;
  return emulated::remember(emulated::lasting_error());
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return emulated::remember(emulated::lasting_error());
}
