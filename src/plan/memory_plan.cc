#include "plan/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace snug {
namespace {

void touch(Placement& placement, int node) {
  if (placement.first < 0) placement.first = node;
  placement.last = node;
}

size_t workspace_bytes(const Graph& graph, const Node& node, const Dims& capacity,
                       const Device& device) {
  std::vector<TensorDesc> descs;
  for (const auto* list : {&node.inputs, &node.outputs}) {
    for (ValueId v : *list) {
      descs.push_back(v == kNoValue ? TensorDesc{.cols = 0} : graph.value(v).desc);
    }
  }
  const std::span<const TensorDesc> all = descs;
  return node.op->workspace_bytes({.dims = capacity,
                                   .device = device,
                                   .in = all.first(node.inputs.size()),
                                   .out = all.subspan(node.inputs.size())});
}

void find_lifetimes(const Graph& graph, const Device& device, MemoryPlan& plan) {
  plan.values.resize(graph.values().size());
  plan.workspaces.resize(graph.nodes().size());
  for (int n = 0; n < int(graph.nodes().size()); ++n) {
    const Node& node = graph.nodes()[size_t(n)];
    for (const auto* list : {&node.inputs, &node.outputs}) {
      for (ValueId v : *list) {
        if (v != kNoValue && graph.value(v).storage == Storage::kTransient) {
          touch(plan.values[size_t(v)], n);
        }
      }
    }
    plan.workspaces[size_t(n)] = {0, align_up(workspace_bytes(graph, node, plan.capacity, device)),
                                  n, n};
  }
  const int end = int(graph.nodes().size()) - 1;
  for (ValueId v : graph.kept()) plan.values[size_t(v)].last = end;
  for (ValueId v : graph.held()) {
    plan.values[size_t(v)].first = 0, plan.values[size_t(v)].last = end;
  }
  for (ValueId v : graph.given()) plan.values[size_t(v)].first = 0;
  for (size_t v = 0; v < plan.values.size(); ++v) {
    if (plan.values[v].first >= 0) {
      plan.values[v].bytes = align_up(graph.values()[v].desc.bytes(plan.capacity));
    }
  }
}

// Largest first, each at the lowest offset where it meets nobody alive at the same time.
void assign_offsets(std::vector<Placement*> all, MemoryPlan& plan) {
  std::stable_sort(all.begin(), all.end(),
                   [](const Placement* a, const Placement* b) { return a->bytes > b->bytes; });
  std::vector<const Placement*> placed;  // in order of offset
  for (Placement* current : all) {
    size_t offset = 0;
    for (const Placement* other : placed) {
      if (!current->alive_with(*other)) continue;
      if (offset + current->bytes <= other->offset) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    current->offset = offset;
    plan.bytes = std::max(plan.bytes, offset + current->bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [](size_t at, const Placement* p) { return at < p->offset; }),
                  current);
  }
}

void find_peak(const std::vector<Placement*>& all, size_t nodes, MemoryPlan& plan) {
  std::vector<int64_t> change(nodes + 1, 0);
  for (const Placement* p : all) {
    change[size_t(p->first)] += int64_t(p->bytes);
    change[size_t(p->last) + 1] -= int64_t(p->bytes);
  }
  int64_t live = 0;
  for (size_t n = 0; n < nodes; ++n) {
    live += change[n];
    if (size_t(live) > plan.live_bytes) plan.live_bytes = size_t(live), plan.peak_node = int(n);
  }
}

// Everything that has to be placed, with its lifetime.
std::vector<Placement*> find_tensors(const Graph& graph, const Device& device, MemoryPlan& plan) {
  find_lifetimes(graph, device, plan);
  std::vector<Placement*> all;
  for (auto* list : {&plan.values, &plan.workspaces}) {
    for (Placement& p : *list) {
      if (p.bytes > 0) all.push_back(&p);
    }
  }
  find_peak(all, graph.nodes().size(), plan);
  return all;
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const Dims& capacity, const Device& device) {
  MemoryPlan plan;
  plan.capacity = capacity;
  assign_offsets(find_tensors(graph, device, plan), plan);
  return plan;
}

size_t live_memory(const Graph& graph, const Dims& capacity, const Device& device) {
  MemoryPlan plan;
  plan.capacity = capacity;
  find_tensors(graph, device, plan);
  return plan.live_bytes;
}

}  // namespace snug
