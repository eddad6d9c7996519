#include "ops/gradient_traffic.h"

#include <gtest/gtest.h>

#include "graph/backward.h"
#include "ops/linear.h"

namespace snug {
namespace {

// A layer for each of the slots, with backward; their weights are parameters 0 and 1.
Graph layers_with(const std::vector<int>& slots) {
  Graph graph;
  const TensorDesc tokens{.rows_are = Rows::kTokens, .cols = 8};
  const ValueId weights[] = {graph.add_parameter("first", {.rows = 8, .cols = 8}, 0, true),
                             graph.add_parameter("second", {.rows = 8, .cols = 8}, 1, true)};
  ValueId x = graph.add_value("x", tokens);
  for (const int slot : slots) {
    const ValueId w = weights[slot];
    graph.begin_segment("layer");
    const ValueId y = graph.add_value("y", tokens);
    graph.add_node(linear({}), {x, w, kNoValue}, {y});
    x = y;
  }
  graph.seed_gradient(x, graph.add_value("dy", tokens));
  append_backward(graph, {});
  return graph;
}

struct Traffic {
  std::vector<std::pair<int, bool>> fetches;  // slot, stored before
  std::vector<std::pair<int, DType>> stores;  // slot, type
};
Traffic traffic_of(const Graph& graph) {
  Traffic traffic;
  for (const Node& node : graph.nodes()) {
    if (const auto* fetch = dynamic_cast<const FetchGradient*>(node.op.get())) {
      traffic.fetches.emplace_back(fetch->slot, fetch->stored_before);
    }
    if (const auto* store = dynamic_cast<const StoreGradient*>(node.op.get())) {
      traffic.stores.emplace_back(store->slot, graph.value(node.inputs[0]).desc.dtype);
    }
  }
  return traffic;
}

// Two layers with one weight: what the later one's backward, which comes first, has stored must not
// be begun anew.
TEST(GradientTraffic, AWeightUsedTwiceIsFetchedAsItWasStored) {
  Graph graph = layers_with({0, 1, 0});
  move_gradients_outside(graph, [](int) { return false; });
  const Traffic traffic = traffic_of(graph);
  EXPECT_EQ(traffic.fetches,
            (std::vector<std::pair<int, bool>>{{0, false}, {1, false}, {0, true}}));
  EXPECT_EQ(traffic.stores, (std::vector<std::pair<int, DType>>{
                                {0, DType::kF32}, {1, DType::kF32}, {0, DType::kF32}}));
}

// What the only micro-batch writes is stored in bf16; there is nothing to fetch.
TEST(GradientTraffic, RoundedGradientsAreOnlyStored) {
  Graph graph = layers_with({0, 1});
  move_gradients_outside(graph, [](int slot) { return slot == 1; });
  const Traffic traffic = traffic_of(graph);
  EXPECT_EQ(traffic.fetches, (std::vector<std::pair<int, bool>>{{0, false}}));
  EXPECT_EQ(traffic.stores,
            (std::vector<std::pair<int, DType>>{{1, DType::kBF16}, {0, DType::kF32}}));
}

}  // namespace
}  // namespace snug
