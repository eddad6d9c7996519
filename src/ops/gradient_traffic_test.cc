#include "ops/gradient_traffic.h"

#include <gtest/gtest.h>

#include "graph/backward.h"
#include "ops/linear.h"

namespace snug {
namespace {

// Two layers with one weight: what the later one's backward, which comes first, has stored must not
// be begun anew.
TEST(GradientTraffic, AWeightUsedTwiceIsFetchedAsItWasStored) {
  Graph graph;
  const TensorDesc tokens{.rows_are = Rows::kTokens, .cols = 8};
  const ValueId shared = graph.add_parameter("shared", {.rows = 8, .cols = 8}, 0, true);
  const ValueId own = graph.add_parameter("own", {.rows = 8, .cols = 8}, 1, true);
  ValueId x = graph.add_value("x", tokens);
  for (const ValueId w : {shared, own, shared}) {
    graph.begin_segment("layer");
    const ValueId y = graph.add_value("y", tokens);
    graph.add_node(linear({}), {x, w, kNoValue}, {y});
    x = y;
  }
  graph.seed_gradient(x, graph.add_value("dy", tokens));
  append_backward(graph, {});
  move_gradients_outside(graph);
  std::vector<std::pair<int, bool>> fetches;
  int stores = 0;
  for (const Node& node : graph.nodes()) {
    if (const auto* fetch = dynamic_cast<const FetchGradient*>(node.op.get())) {
      fetches.emplace_back(fetch->slot, fetch->stored_before);
    }
    stores += dynamic_cast<const StoreGradient*>(node.op.get()) != nullptr;
  }
  EXPECT_EQ(fetches, (std::vector<std::pair<int, bool>>{{0, false}, {1, false}, {0, true}}));
  EXPECT_EQ(stores, 3);
}

}  // namespace
}  // namespace snug
