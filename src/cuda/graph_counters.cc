#include "cuda/graph_counters.h"

#include <algorithm>

#include "cuda/check.h"

namespace snug::cuda {
namespace {

constexpr size_t kSliceAlign = 256;

// Edges carry data since CUDA 12.3, under names of their own until 13.
#if CUDART_VERSION >= 13000
constexpr auto* get_dependencies = cudaGraphNodeGetDependencies;
constexpr auto* get_dependents = cudaGraphNodeGetDependentNodes;
constexpr auto* add_edges = cudaGraphAddDependencies;
#else
constexpr auto* get_dependencies = cudaGraphNodeGetDependencies_v2;
constexpr auto* get_dependents = cudaGraphNodeGetDependentNodes_v2;
constexpr auto* add_edges = cudaGraphAddDependencies_v2;
#endif

struct Neighbours {
  std::vector<cudaGraphNode_t> nodes;
  bool plain = true;  // each waits for all of the one before

  bool has(cudaGraphNode_t node) const { return std::ranges::find(nodes, node) != nodes.end(); }
};

// `get` is one of those above. Asked for their number alone, it may fail for want of room for the
// edges' data.
template <class Get>
Neighbours neighbours(cudaGraphNode_t node, const Get& get) {
  Neighbours found;
  std::vector<cudaGraphEdgeData> edges;
  size_t room = 8, count = 8;
  while (count >= room) {
    count = room *= 2;
    found.nodes.resize(room);
    edges.assign(room, {});
    SNUG_CUDA(get(node, found.nodes.data(), edges.data(), &count));
  }
  found.nodes.resize(count);
  found.plain = std::all_of(edges.begin(), edges.begin() + ptrdiff_t(count),
                            [](const cudaGraphEdgeData& edge) {
                              return edge.from_port == 0 && edge.to_port == 0 &&
                                     edge.type == cudaGraphDependencyTypeDefault;
                            });
  return found;
}

// Takes a node out: what waited for it waits for what it waited for. False, and nothing changed,
// where edges are not plain or there already.
bool take_out(cudaGraph_t graph, cudaGraphNode_t node) {
  const Neighbours before = neighbours(node, get_dependencies),
                   behind = neighbours(node, get_dependents);
  if (!before.plain || !behind.plain) return false;
  std::vector<cudaGraphNode_t> from, to;
  for (const cudaGraphNode_t later : behind.nodes) {
    const Neighbours others = neighbours(later, get_dependencies);
    for (const cudaGraphNode_t earlier : before.nodes) {
      if (others.has(earlier)) return false;
      from.push_back(earlier);
      to.push_back(later);
    }
  }
  SNUG_CUDA(cudaGraphDestroyNode(node));
  if (!from.empty()) SNUG_CUDA(add_edges(graph, from.data(), to.data(), nullptr, from.size()));
  return true;
}

cudaMemsetParams fill_of(cudaGraphNode_t node) {
  cudaMemsetParams fill = {};
  SNUG_CUDA(cudaGraphMemsetNodeGetParams(node, &fill));
  return fill;
}

size_t bytes_of(const cudaMemsetParams& fill) {
  return (fill.height > 1 ? fill.pitch * (fill.height - 1) : 0) + fill.width * fill.elementSize;
}

std::vector<cudaGraphNode_t> root_nodes(cudaGraph_t graph) {
  size_t count = 0;
  SNUG_CUDA(cudaGraphGetRootNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) SNUG_CUDA(cudaGraphGetRootNodes(graph, nodes.data(), &count));
  return nodes;
}

}  // namespace

std::vector<cudaGraphNode_t> fill_nodes(cudaGraph_t graph) {
  size_t count = 0;
  SNUG_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) SNUG_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::erase_if(nodes, [](cudaGraphNode_t node) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    SNUG_CUDA(cudaGraphNodeGetType(node, &type));
    return type != cudaGraphNodeTypeMemset;
  });
  return nodes;
}

Fills fills_of(cudaStream_t stream, const std::function<void()>& work, GraphCounters* counters) {
  if (stream == nullptr) return {};
  SNUG_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  if (counters) counters->begin();
  work();
  cudaGraph_t graph = nullptr;
  SNUG_CUDA(cudaStreamEndCapture(stream, &graph));
  Fills fills;
  fills.hoisted = counters ? counters->leading_clears(graph) : 0;
  fills.left = int64_t(fill_nodes(graph).size()) - fills.hoisted;
  SNUG_CUDA(cudaGraphDestroy(graph));
  return fills;
}

size_t fill_bytes(cudaGraphNode_t node) { return bytes_of(fill_of(node)); }

std::span<std::byte> GraphCounters::take(size_t bytes) {
  bytes = (bytes + kSliceAlign - 1) / kSliceAlign * kSliceAlign;
  if (bytes > region_.size() - used_) return {};
  const std::span<std::byte> slice = region_.subspan(used_, bytes);
  used_ += bytes;
  return slice;
}

bool GraphCounters::clears_slice(cudaGraphNode_t node) const {
  const cudaMemsetParams fill = fill_of(node);
  const auto begin = reinterpret_cast<uintptr_t>(fill.dst),
             region = reinterpret_cast<uintptr_t>(region_.data());
  return fill.value == 0 && begin >= region && begin + bytes_of(fill) <= region + used_;
}

int64_t GraphCounters::leading_clears(cudaGraph_t graph) const {
  return std::ranges::count_if(fill_nodes(graph), [&](cudaGraphNode_t node) {
    return clears_slice(node) && neighbours(node, get_dependencies).nodes.empty();
  });
}

int64_t GraphCounters::hoist_clears(cudaGraph_t graph) const {
  int64_t count = 0;
  for (const cudaGraphNode_t node : fill_nodes(graph)) {
    if (clears_slice(node) && take_out(graph, node)) ++count;
  }
  if (count == 0) return 0;
  const std::vector<cudaGraphNode_t> first = root_nodes(graph);
  const cudaMemsetParams all{.dst = region_.data(),
                             .pitch = 0,
                             .value = 0,
                             .elementSize = 4,
                             .width = used_ / 4,
                             .height = 1};
  cudaGraphNode_t clear = nullptr;
  SNUG_CUDA(cudaGraphAddMemsetNode(&clear, graph, nullptr, 0, &all));
  const std::vector<cudaGraphNode_t> from(first.size(), clear);
  if (!first.empty()) SNUG_CUDA(add_edges(graph, from.data(), first.data(), nullptr, first.size()));
  return count;
}

}  // namespace snug::cuda
