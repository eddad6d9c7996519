#include "ops/gradient_traffic.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace snug {
namespace {

// Where one segment's backward adds to one parameter's gradient.
struct Visit {
  size_t first, last;  // nodes
  ValueId gradient;
};

}  // namespace

// On the CPU, device and host are the same memory: no plan asks for this.
void FetchGradient::run(const Call&) const {
  SNUG_CHECK(!"gradients of a CPU run lie in its arena");
}
void StoreGradient::run(const Call&) const {
  SNUG_CHECK(!"gradients of a CPU run lie in its arena");
}

void move_gradients_outside(Graph& graph, const std::function<bool(int slot)>& rounded) {
  std::map<std::pair<int, int>, Visit> visits;  // by slot and segment
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    for (ValueId& out : graph.node(n).outputs) {
      if (out == kNoValue || graph.value(out).storage != Storage::kGradient) continue;
      const Value value = graph.value(out);
      const auto [found, fresh] =
          visits.try_emplace({value.slot, graph.nodes()[n].segment}, Visit{n, n, kNoValue});
      if (fresh) {
        TensorDesc desc = value.desc;
        if (rounded(value.slot)) desc.dtype = DType::kBF16;
        found->second.gradient = graph.add_value(value.name, desc);
      }
      found->second.last = n;
      out = found->second.gradient;
    }
  }
  std::multimap<size_t, Node> before, behind;  // what to put there, by node
  std::map<int, size_t> first_visits;          // by slot
  for (const auto& [at, visit] : visits) {
    const auto [found, fresh] = first_visits.try_emplace(at.first, visit.first);
    if (!fresh) found->second = std::min(found->second, visit.first);
  }
  for (const auto& [at, visit] : visits) {
    const auto [slot, segment] = at;
    const bool stored_before = visit.first > first_visits.at(slot);
    SNUG_CHECK(!stored_before || !rounded(slot));
    if (!rounded(slot)) {
      before.emplace(visit.first, Node{.op = std::make_shared<FetchGradient>(slot, stored_before),
                                       .inputs = {},
                                       .outputs = {visit.gradient},
                                       .segment = segment,
                                       .in_forward = false});
    }
    behind.emplace(visit.last, Node{.op = std::make_shared<StoreGradient>(slot),
                                    .inputs = {visit.gradient},
                                    .outputs = {},
                                    .segment = segment,
                                    .in_forward = false});
  }
  graph.insert_nodes(before, behind);
}

}  // namespace snug
