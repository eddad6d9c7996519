// Where copies to the outside and back begin and end, on a chain of layers that each keep one value
// for their backward.
#include "ops/activation_traffic.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/memory.h"
#include "graph/graph_test_util.h"

namespace snug {
namespace {

// Layer i makes value i and statistics from value i - 1; backward reads value i for layer i + 1 and
// again for layer i.
Graph layers(int count) {
  Graph graph;
  std::vector<ValueId> values;
  const auto value = [&](const std::string& name, int64_t cols) {
    return graph.add_value(name, {.rows_are = Rows::kTokens, .cols = cols});
  };
  const auto add = [&](const std::string& name, std::vector<ValueId> inputs,
                       std::vector<ValueId> outputs, bool in_forward) {
    graph.add_node(std::make_shared<Named>(name), std::move(inputs), std::move(outputs));
    graph.node(graph.nodes().size() - 1).in_forward = in_forward;
  };
  std::vector<ValueId> statistics;
  for (int i = 0; i < count; ++i) {
    graph.begin_segment("layer");
    const std::string name = std::to_string(i);
    values.push_back(value(name, 8));
    statistics.push_back(value(name + ".stats", 2));
    add("forward" + name, {i > 0 ? values[size_t(i) - 1] : kNoValue},
        {values.back(), statistics.back()}, true);
  }
  for (int i = count - 1; i >= 0; --i) {
    add("backward" + std::to_string(i),
        {values[size_t(i)], statistics[size_t(i)], i > 0 ? values[size_t(i) - 1] : kNoValue}, {},
        false);
    graph.node(graph.nodes().size() - 1).segment = i;
  }
  return graph;
}

std::vector<std::string> names(const Graph& graph) {
  std::vector<std::string> all;
  for (const Node& node : graph.nodes()) {
    std::string name(node.op->name());
    if (name.ends_with("_activation")) {
      name = name.substr(0, name.find('_')) + " " +
             graph.value(node.inputs.empty() ? node.outputs[0] : node.inputs[0]).name;
    }
    all.push_back(name);
  }
  return all;
}

TEST(ActivationTraffic, CopiesRunBesideALayerEach) {
  Graph graph = layers(4);
  move_activations_outside(graph, Recomputation(4, Parts::all()));
  // Values 3 and 2 are needed by the first layer that has its backward: they stay.
  EXPECT_EQ(names(graph),
            (std::vector<std::string>{"forward0", "stow 0", "forward1", "stow 1", "await 0",
                                      "forward2", "await 1", "forward3", "fetch 1 (fetched)",
                                      "backward3", "fetch 0 (fetched)", "await 1 (fetched)",
                                      "backward2", "await 0 (fetched)", "backward1", "backward0"}));
  EXPECT_EQ(graph.stowed().size(), 2u);
  for (const Node& node : graph.nodes()) {
    if (node.op->name().starts_with("backward")) {
      for (const ValueId in : node.inputs) {
        EXPECT_FALSE(in != kNoValue && std::ranges::count(graph.stowed(), in) > 0)
            << node.op->name();
      }
    }
  }
}

TEST(ActivationTraffic, OnlyLayersThatAreRecomputedWhole) {
  Graph graph = layers(5);
  const size_t before = graph.nodes().size();
  move_activations_outside(graph, Recomputation(5, Parts{Part::kNorms, Part::kMlp}));
  EXPECT_EQ(graph.nodes().size(), before);
  move_activations_outside(graph, {Parts::all(), {}, Parts::all()});
  ASSERT_EQ(graph.stowed().size(), 1u);
  EXPECT_EQ(graph.value(graph.stowed()[0]).name, "0");
}

TEST(ActivationTraffic, BytesComeBackOnTheCpu) {
  std::vector<std::byte> block(100);
  HostMemory outside(block);
  const std::vector<size_t> stowed = {4, 40};
  const std::vector<float> value = {1, 2, 3, 4, 5, 6};
  std::vector<float> again(value.size());
  const Tensor from{const_cast<float*>(value.data()), DType::kF32, 2, 3},
      to{again.data(), DType::kF32, 2, 3};
  StowActivation(1).run(
      {.in = {&from, 1}, .out = {}, .workspace = {}, .outside = &outside, .stowed = stowed});
  FetchActivation(1).run(
      {.in = {}, .out = {&to, 1}, .workspace = {}, .outside = &outside, .stowed = stowed});
  EXPECT_EQ(again, value);
}

}  // namespace
}  // namespace snug
