#include "ops/activation_traffic.h"

#include <algorithm>

#include "core/error.h"
#include "core/memory.h"

namespace snug {
namespace {

// Mean and deviation of a row, which norms keep: too little to be worth a copy.
constexpr int64_t kStatistics = 2;
constexpr size_t kNever = size_t(-1);

// A value that lives from forward to backward, by its nodes.
struct Kept {
  ValueId value;
  size_t made, last_forward, first_backward = kNever;
};

// In the order they are made.
std::vector<Kept> find_kept(const Graph& graph, const Recomputation& recompute) {
  std::vector<Kept> kept;
  std::vector<size_t> place(graph.values().size(), kNever);  // in `kept`
  const auto wanted = [&](const Node& node, ValueId v) {
    const size_t segment = size_t(node.segment);
    const TensorDesc& desc = graph.value(v).desc;
    return segment < recompute.size() && recompute[segment] == Parts::all() &&
           graph.value(v).storage == Storage::kTransient && desc.rows_are == Rows::kTokens &&
           desc.cols > kStatistics && std::ranges::count(graph.kept(), v) == 0;
  };
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    for (const ValueId in : node.inputs) {
      if (in == kNoValue || place[size_t(in)] == kNever) continue;
      Kept& found = kept[place[size_t(in)]];
      if (node.in_forward) {
        found.last_forward = n;
      } else {
        found.first_backward = std::min(found.first_backward, n);
      }
    }
    for (const ValueId out : node.outputs) {
      if (!node.in_forward || out == kNoValue || !wanted(node, out)) continue;
      place[size_t(out)] = kept.size();
      kept.push_back({out, n, n});
    }
  }
  std::erase_if(kept, [](const Kept& k) { return k.first_backward == kNever; });
  return kept;
}

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data), size_t(tensor.size()) * dtype_bytes(tensor.dtype)};
}

}  // namespace

void StowActivation::run(const Call& call) const {
  call.outside->write(call.stowed[size_t(slot)], bytes_of(call.in[0]));
}

void FetchActivation::run(const Call& call) const {
  call.outside->read(call.stowed[size_t(slot)], bytes_of(call.out[0]));
}

void move_activations_outside(Graph& graph, const Recomputation& recompute) {
  const std::vector<Kept> kept = find_kept(graph, recompute);
  const auto is_backward = [](const Node& node) { return !node.in_forward; };
  const auto turn =
      size_t(std::ranges::find_if(graph.nodes(), is_backward) - graph.nodes().begin());
  std::vector<size_t> by_need(kept.size());  // in `kept`
  for (size_t i = 0; i < kept.size(); ++i) by_need[i] = i;
  std::ranges::stable_sort(by_need, {}, [&](size_t i) { return kept[i].first_backward; });
  std::vector<ValueId> fetched(graph.values().size(), kNoValue);
  std::multimap<size_t, Node> before, behind;  // what to put there, by node
  // From the last to be needed on, so that a fetch is started before anything is waited for at the
  // same node. What is needed first, and what would come back in the very layer that needs it,
  // stays.
  for (size_t k = by_need.size(); k-- > 1;) {
    const size_t i = by_need[k];
    const Kept& value = kept[i];
    const size_t gone =
        std::max(i + 1 < kept.size() ? kept[i + 1].made : turn, value.last_forward + 1);
    const size_t back = kept[by_need[k - 1]].first_backward;
    if (gone >= back ||
        graph.nodes()[back].segment == graph.nodes()[value.first_backward].segment) {
      continue;
    }
    const Value& original = graph.value(value.value);
    const ValueId again = graph.add_value(original.name + " (fetched)", original.desc);
    fetched.resize(graph.values().size(), kNoValue);
    fetched[size_t(value.value)] = again;
    const int slot = graph.stow(value.value);
    const auto node = [&](OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                          size_t at) {
      const Node& beside = graph.nodes()[at];
      return Node{.op = std::move(op),
                  .inputs = std::move(inputs),
                  .outputs = std::move(outputs),
                  .segment = beside.segment,
                  .in_forward = beside.in_forward};
    };
    behind.emplace(value.made,
                   node(std::make_shared<StowActivation>(slot), {value.value}, {}, value.made));
    before.emplace(gone, node(std::make_shared<AwaitActivation>(slot), {value.value}, {}, gone));
    before.emplace(back, node(std::make_shared<FetchActivation>(slot), {}, {again}, back));
    before.emplace(value.first_backward, node(std::make_shared<AwaitActivation>(slot), {again}, {},
                                              value.first_backward));
  }
  for (size_t n = turn; n < graph.nodes().size(); ++n) {
    for (ValueId& in : graph.node(n).inputs) {
      if (in != kNoValue && fetched[size_t(in)] != kNoValue) in = fetched[size_t(in)];
    }
  }
  graph.insert_nodes(before, behind);
}

}  // namespace snug
