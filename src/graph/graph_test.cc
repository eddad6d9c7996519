// Backward and recomputation on a toy operator: y = a·x (a trainable), enough to see which nodes
// are written, in which order, and which gradients are accumulated.
#include <gtest/gtest.h>

#include <algorithm>

#include "graph/backward.h"
#include "graph/graph_test_util.h"

namespace snug {
namespace {

// inputs {x, a} -> {y}; backward reads x and dy, writes dx and da.
class Scale : public Named {
 public:
  Scale() : Named("scale") {}
  void backward(const Node& node, GradientWriter& writer) const override {
    const ValueId dy = writer.gradient_of(node.outputs[0]);
    if (dy == kNoValue) return;
    const auto dx = writer.gradient_for(node.inputs[0]);
    const auto da = writer.gradient_for(node.inputs[1]);
    if (!dx && !da) return;
    writer.emit(std::make_shared<Named>(dx.accumulate ? "scale_backward+" : "scale_backward"),
                {writer.saved(node.inputs[0]), dy}, {dx.value, da.value});
  }
};

constexpr TensorDesc kRow = {.rows_are = Rows::kTokens, .cols = 4};

struct Chain {
  Graph graph;
  ValueId input = kNoValue, output = kNoValue;
};

// `segments` segments of two nodes each.
Chain chain(int segments, bool first_frozen = false) {
  Chain c;
  c.input = c.graph.add_value("x", kRow);
  ValueId x = c.input;
  const auto op = std::make_shared<Scale>();
  for (int s = 0; s < segments; ++s) {
    c.graph.begin_segment("s");
    for (int n = 0; n < 2; ++n) {
      const int slot = 2 * s + n;
      const ValueId a = c.graph.add_parameter("a", {.cols = 4}, slot, !(first_frozen && s == 0));
      const ValueId y = c.graph.add_value("y" + std::to_string(slot), kRow);
      c.graph.add_node(op, {x, a}, {y});
      x = y;
    }
  }
  c.output = x;
  c.graph.seed_gradient(x, c.graph.add_value("dy", kRow));
  return c;
}

int count(const Graph& graph, std::string_view name) {
  return int(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                           [&](const Node& node) { return node.op->name() == name; }));
}

TEST(Backward, WritesOneNodePerForwardNodeInReverse) {
  Chain c = chain(2);
  append_backward(c.graph, {});
  EXPECT_EQ(c.graph.nodes().size(), 8u);
  EXPECT_EQ(c.graph.nodes()[4].inputs[0], c.graph.nodes()[3].inputs[0]);
  EXPECT_EQ(c.graph.nodes()[7].outputs[0], kNoValue) << "nobody wants the gradient of the input";
  EXPECT_EQ(c.graph.value(c.graph.nodes()[7].outputs[1]).storage, Storage::kGradient);
}

TEST(Backward, FrozenPrefixIsPruned) {
  Chain c = chain(2, /*first_frozen=*/true);
  append_backward(c.graph, {});
  EXPECT_EQ(count(c.graph, "scale_backward"), 2);
}

TEST(Backward, RecomputesOnlyWhatBackwardReads) {
  Chain c = chain(3);
  append_backward(c.graph, {{}, Parts::all(), {}});
  // Segment 1's first node is run again (its output feeds the second node's backward); the second
  // node's output is read by segment 2 and therefore kept.
  EXPECT_EQ(count(c.graph, "scale"), 6 + 1);
  const auto again =
      std::find_if(c.graph.nodes().begin(), c.graph.nodes().end(),
                   [](const Node& n) { return n.op->name() == "scale" && !n.in_forward; });
  ASSERT_NE(again, c.graph.nodes().end());
  EXPECT_EQ(again->inputs[0], c.graph.nodes()[1].outputs[0]) << "starts from the kept boundary";
  EXPECT_NE(again->outputs[0], c.graph.nodes()[2].outputs[0]) << "writes a value of its own";
}

// inputs {x, a} -> {y, kept}: y follows from `kept` alone, which backward reads too.
class Bend : public Named {
 public:
  Bend() : Named("bend") {}
  std::optional<Remake> remake(const Node& node, size_t which) const override {
    if (which != 0) return {};
    return Remake{std::make_shared<Named>("bend_again"), {node.outputs[1]}, Part::kActivations};
  }
  void backward(const Node& node, GradientWriter& writer) const override {
    const ValueId dy = writer.gradient_of(node.outputs[0]);
    const auto dx = writer.gradient_for(node.inputs[0]);
    const auto da = writer.gradient_for(node.inputs[1]);
    writer.emit(std::make_shared<Named>("bend_backward"),
                {writer.saved(node.inputs[0]), writer.saved(node.outputs[1]), dy},
                {dx.value, da.value});
  }
};

// Segments of one bend each, and a scale at the end.
Chain bends(int segments) {
  Chain c;
  ValueId x = c.input = c.graph.add_value("x", kRow);
  for (int s = 0; s < segments; ++s) {
    c.graph.begin_segment("s");
    const ValueId a = c.graph.add_parameter("a", {.cols = 4}, s, true);
    const ValueId y = c.graph.add_value("y" + std::to_string(s), kRow),
                  kept = c.graph.add_value("kept" + std::to_string(s), kRow);
    c.graph.add_node(std::make_shared<Bend>(), {x, a}, {y, kept});
    x = y;
  }
  const ValueId a = c.graph.add_parameter("a", {.cols = 4}, segments, true),
                y = c.graph.add_value("y", kRow);
  c.graph.add_node(std::make_shared<Scale>(), {x, a}, {y});
  c.graph.seed_gradient(y, c.graph.add_value("dy", kRow));
  return c;
}

std::vector<std::string> backward_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) {
    if (!node.in_forward) names.emplace_back(node.op->name());
  }
  return names;
}

TEST(Recompute, RemakesRightBeforeTheFirstReader) {
  Chain c = bends(2);
  append_backward(c.graph, {Parts{Part::kActivations}, Parts{Part::kActivations}});
  // y0 is read by the other segment: it is made again there, from what stays.
  EXPECT_EQ(backward_names(c.graph),
            (std::vector<std::string>{"bend_again", "scale_backward", "bend_again", "bend_backward",
                                      "bend_backward"}));
  EXPECT_EQ(c.graph.nodes()[5].inputs[0], c.graph.nodes()[0].outputs[1]);
}

TEST(Recompute, WhatOthersAreMadeFromStaysThoughItsNodeIsRepeated) {
  Chain c = bends(3);
  append_backward(c.graph, {{}, Parts{Part::kActivations, Part::kSums}, {}});
  // The middle segment's node could be run again, but what the last one makes its input from stays,
  // and that is all that its own backward reads.
  EXPECT_EQ(backward_names(c.graph),
            (std::vector<std::string>{"scale_backward", "bend_again", "bend_backward",
                                      "bend_backward", "bend_backward"}));
}

TEST(Recompute, PartsHaveNames) {
  for (unsigned bits = 0; bits < 1u << kPartNames.size(); ++bits) {
    Parts parts, read;
    for (size_t i = 0; i < kPartNames.size(); ++i) {
      if (bits >> i & 1) parts.add(kPartNames[i].part);
    }
    ASSERT_TRUE(parse_parts(to_string(parts), read)) << to_string(parts);
    EXPECT_TRUE(read == parts);
  }
  Parts parts;
  for (const char* wrong : {"", "mpl", "mlp,", ",mlp", "mlp, norms", "none,mlp", "all,mlp"}) {
    EXPECT_FALSE(parse_parts(wrong, parts)) << wrong;
  }
  EXPECT_EQ(describe({}, 3), "none");
  EXPECT_EQ(describe(Recomputation(4, Parts::all()), 3), "all layers");
  EXPECT_EQ(describe({{}, Parts::all(), Parts{Part::kNorms}}, 3),
            "all of 1, norms in 1 of 3 layers");
}

TEST(Backward, SecondConsumerAccumulates) {
  Graph graph;
  graph.begin_segment("s");
  const ValueId x0 = graph.add_value("x0", kRow);
  const ValueId a = graph.add_parameter("a", {.cols = 4}, 0, true);
  const auto op = std::make_shared<Scale>();
  const ValueId x = graph.add_value("x", kRow), y = graph.add_value("y", kRow),
                z = graph.add_value("z", kRow);
  graph.add_node(op, {x0, a}, {x});
  graph.add_node(op, {x, a}, {y});
  graph.add_node(op, {x, a}, {z});
  graph.seed_gradient(y, graph.add_value("dy", kRow));
  graph.seed_gradient(z, graph.add_value("dz", kRow));
  append_backward(graph, {});
  EXPECT_EQ(graph.nodes()[3].op->name(), "scale_backward");   // z first: writes d(x)
  EXPECT_EQ(graph.nodes()[4].op->name(), "scale_backward+");  // then y adds
  EXPECT_EQ(graph.nodes()[3].outputs[0], graph.nodes()[4].outputs[0]);
}

}  // namespace
}  // namespace snug
