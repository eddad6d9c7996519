#include "plan/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace snug {
namespace {

class Scratch : public Op {
 public:
  explicit Scratch(size_t bytes) : bytes_(bytes) {}
  std::string_view name() const override { return "scratch"; }
  size_t workspace_bytes(const Sizing& sizing) const override {
    return bytes_ * size_t(sizing.device.threads);
  }
  void run(const Call&) const override {}

 private:
  size_t bytes_;
};

Graph random_graph(std::mt19937& random) {
  const auto pick = [&](int n) { return int(random() % unsigned(n)); };
  Graph graph;
  graph.begin_segment("all");
  std::vector<ValueId> made = {graph.add_parameter("w", {.rows = 8, .cols = 8}, 0, true)};
  const int nodes = 1 + pick(60);
  for (int n = 0; n < nodes; ++n) {
    std::vector<ValueId> in, out;
    for (int i = 0; i < 1 + pick(3); ++i) in.push_back(made[size_t(pick(int(made.size())))]);
    for (int i = 0; i < 1 + pick(2); ++i) {
      out.push_back(graph.add_value(
          "v", {.rows_are = pick(2) ? Rows::kTokens : Rows::kSequences, .cols = 1 + pick(50)}));
    }
    graph.add_node(std::make_shared<Scratch>(pick(2) ? size_t(pick(5000)) : 0), in, out);
    made.insert(made.end(), out.begin(), out.end());
  }
  return graph;
}

// Brute force: no two placements that are alive together share a byte, all lie inside, the lower
// bound holds.
TEST(MemoryPlan, RandomGraphsNeverOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const Graph graph = random_graph(random);
    const MemoryPlan plan =
        plan_memory(graph, {.tokens = 37, .sequences = 5, .longest = 9}, {.threads = 2});
    std::vector<Placement> all = plan.values;
    all.insert(all.end(), plan.workspaces.begin(), plan.workspaces.end());
    std::erase_if(all, [](const Placement& p) { return p.bytes == 0; });
    size_t top = 0;
    for (size_t a = 0; a < all.size(); ++a) {
      EXPECT_EQ(all[a].offset % kTensorAlignment, 0u);
      top = std::max(top, all[a].offset + all[a].bytes);
      for (size_t b = a + 1; b < all.size(); ++b) {
        if (!all[a].alive_with(all[b])) continue;
        EXPECT_TRUE(all[a].offset + all[a].bytes <= all[b].offset ||
                    all[b].offset + all[b].bytes <= all[a].offset);
      }
    }
    EXPECT_EQ(top, plan.bytes);
    EXPECT_GE(plan.bytes, plan.live_bytes);
  }
}

TEST(MemoryPlan, ReusesDeadValuesAndKeepsWhatIsAskedFor) {
  const auto op = std::make_shared<Scratch>(0);
  Graph graph;
  graph.begin_segment("all");
  std::vector<ValueId> v;
  for (int i = 0; i < 5; ++i) {
    v.push_back(graph.add_value("v", {.rows_are = Rows::kTokens, .cols = 16}));
  }
  for (size_t i = 0; i + 1 < v.size(); ++i) graph.add_node(op, {v[i]}, {v[i + 1]});
  const Dims dims = {.tokens = 1, .sequences = 1, .longest = 1};
  EXPECT_EQ(plan_memory(graph, dims, {}).bytes, 2 * kTensorAlignment);
  graph.keep(v[1]);
  EXPECT_EQ(plan_memory(graph, dims, {}).bytes, 3 * kTensorAlignment);
}

}  // namespace
}  // namespace snug
