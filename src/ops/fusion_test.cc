#include "ops/fusion.h"

#include <gtest/gtest.h>

#include <tuple>

#include "graph/backward.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/residual_norm.h"

namespace snug {
namespace {

int count(const Graph& graph, std::string_view name) {
  int found = 0;
  for (const Node& node : graph.nodes()) found += node.op->name() == name;
  return found;
}

// y = norm(linear(x) + x), and the loss is anything that gives y a gradient.
Graph layer(Activation activation) {
  Graph graph;
  const TensorDesc tokens{.rows_are = Rows::kTokens, .cols = 8};
  auto parameter = [&, slot = 0](const char* name, int64_t rows) mutable {
    return graph.add_parameter(name, {.rows = rows, .cols = 8}, slot++, true);
  };
  const ValueId w = parameter("w", 8), b = parameter("b", 1), gamma = parameter("gamma", 1),
                beta = parameter("beta", 1);
  graph.begin_segment("layer");
  const ValueId x = graph.add_value("x", tokens), h = graph.add_value("h", tokens),
                pre = graph.add_value("pre", tokens);
  std::vector<ValueId> outputs = {h};
  if (keeps_pre_activation(activation)) outputs.push_back(pre);
  graph.add_node(linear({.activation = activation}), {x, w, b}, outputs);
  const ValueId y = graph.add_value("y", tokens), sum = graph.add_value("sum", tokens);
  const ValueId stats = graph.add_value("stats", {.rows_are = Rows::kTokens, .cols = 2}),
                dy = graph.add_value("dy", tokens);
  graph.add_node(residual_norm({.hidden = 8}), {h, x, gamma, beta}, {y, sum, stats});
  graph.seed_gradient(y, dy);
  append_backward(graph, {});
  return graph;
}

TEST(FuseBiasGradients, TheNormTakesTheSumOver) {
  Graph graph = layer(Activation::kNone);
  ASSERT_EQ(count(graph, "linear_epilogue_gradient"), 1);
  ValueId db = kNoValue;
  for (const Node& node : graph.nodes()) {
    if (node.op->name() == "linear_epilogue_gradient") db = node.outputs[1];
  }
  fuse_bias_gradients(graph);
  EXPECT_EQ(count(graph, "linear_epilogue_gradient"), 0);
  for (const Node& node : graph.nodes()) {
    if (node.op->name() != "norm_gradient") continue;
    ASSERT_EQ(node.outputs.size(), 5u);
    EXPECT_EQ(node.outputs[4], db);
  }
}

TEST(FuseBiasGradients, AttentionTakesTheSumOver) {
  Graph graph;
  const auto tokens = [](int64_t cols) {
    return TensorDesc{.rows_are = Rows::kTokens, .cols = cols};
  };
  const ValueId w = graph.add_parameter("w", {.rows = 24, .cols = 8}, 0, true);
  const ValueId b = graph.add_parameter("b", {.rows = 1, .cols = 24}, 1, true);
  graph.begin_segment("layer");
  const ValueId x = graph.add_value("x", tokens(8)), qkv = graph.add_value("qkv", tokens(24));
  const ValueId o = graph.add_value("o", tokens(8)), lse = graph.add_value("lse", tokens(2)),
                d_o = graph.add_value("do", tokens(8));
  graph.add_node(linear({}), {x, w, b}, {qkv});
  graph.add_node(attention({.heads = 2, .head_dim = 4}), {qkv}, {o, lse});
  graph.seed_gradient(o, d_o);
  append_backward(graph, {});
  ASSERT_EQ(count(graph, "linear_epilogue_gradient"), 1);
  fuse_bias_gradients(graph);
  EXPECT_EQ(count(graph, "linear_epilogue_gradient"), 0);
  for (const Node& node : graph.nodes()) {
    if (node.op->name() != "attention_gradient") continue;
    EXPECT_EQ(node.outputs.size(), 2u);
  }
}

// y = linear(activation(linear(x))), its gradient given, and z = linear(activation(linear(x))) with
// another weight where what is between is read twice.
Graph two_layers(Activation activation, bool read_twice, const Recomputation& recomputed = {},
                 DType dtype = DType::kF32, int64_t width = 8) {
  Graph graph;
  const TensorDesc tokens{.dtype = dtype, .rows_are = Rows::kTokens, .cols = width};
  auto parameter = [&, slot = 0](const char* name, int64_t rows) mutable {
    return graph.add_parameter(name, {.rows = rows, .cols = width}, slot++, true);
  };
  const ValueId first = parameter("first", width), b = parameter("b", 1);
  const ValueId second = parameter("second", width), third = parameter("third", width);
  graph.begin_segment("layer");
  const ValueId x = graph.add_value("x", tokens), h = graph.add_value("h", tokens),
                pre = graph.add_value("pre", tokens);
  graph.add_node(linear({.activation = activation}), {x, first, b}, {h, pre});
  const auto reads = [&](const char* name, ValueId w) {
    const ValueId y = graph.add_value(name, tokens), dy = graph.add_value(name, tokens);
    graph.add_node(linear({}), {h, w, kNoValue}, {y});
    graph.seed_gradient(y, dy);
  };
  reads("y", second);
  if (read_twice) reads("z", third);
  append_backward(graph, recomputed);
  return graph;
}

TEST(FuseActivationGradients, TheProductTakesTheEpilogueOver) {
  for (const auto& [activation, recomputed] : {std::pair{Activation::kGelu, false},
                                               {Activation::kGelu, true},
                                               {Activation::kGeluTanh, false},
                                               {Activation::kGeluTanh, true}}) {
    Graph graph = two_layers(activation, false, {recomputed ? Parts::all() : Parts()});
    Node epilogue;
    for (const Node& node : graph.nodes()) {
      if (node.op->name() == "linear_epilogue_gradient") epilogue = node;
    }
    ASSERT_NE(epilogue.op, nullptr);
    fuse_activation_gradients(graph);
    EXPECT_EQ(count(graph, "linear_epilogue_gradient"), 0);
    int fused = 0;
    for (const Node& node : graph.nodes()) {
      const auto* gradient = dynamic_cast<const LinearInputGradient*>(node.op.get());
      if (gradient == nullptr || gradient->activation == Activation::kNone) continue;
      ++fused;
      EXPECT_EQ(node.inputs[2], epilogue.inputs[1]);
      EXPECT_EQ(node.outputs, epilogue.outputs);
    }
    EXPECT_EQ(fused, 1);
  }
}

// The sum of two gradients goes through GELU, and no product knows other activations.
TEST(FuseActivationGradients, WhatCannotBeOneProductStaysAsItIs) {
  for (const auto& [activation, read_twice] :
       {std::pair{Activation::kGelu, true}, {Activation::kRelu, false}}) {
    Graph graph = two_layers(activation, read_twice);
    const size_t before = graph.nodes().size();
    fuse_activation_gradients(graph);
    EXPECT_EQ(graph.nodes().size(), before);
    EXPECT_EQ(count(graph, "linear_epilogue_gradient"), 1);
  }
}

// Whether each layer with GELU keeps its slope, and the activation of each gradient that goes
// through one.
struct Kept {
  std::vector<bool> slopes;
  std::vector<Activation> gradients;
};
Kept kept_in(const Graph& graph) {
  Kept kept;
  for (const Node& node : graph.nodes()) {
    const auto* layer = dynamic_cast<const Linear*>(node.op.get());
    if (layer != nullptr && layer->spec.activation != Activation::kNone) {
      kept.slopes.push_back(layer->spec.keeps_slope);
    }
    const auto* epilogue = dynamic_cast<const LinearEpilogueGradient*>(node.op.get());
    if (epilogue != nullptr) kept.gradients.push_back(epilogue->activation);
    const auto* product = dynamic_cast<const LinearInputGradient*>(node.op.get());
    if (product != nullptr && product->activation != Activation::kNone) {
      kept.gradients.push_back(product->activation);
    }
  }
  return kept;
}

// Also where the sum of two gradients goes through GELU, or the layer runs again.
TEST(KeepSlopes, OfArgumentsThatGradientsAloneRead) {
  for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh}) {
    for (const bool read_twice : {false, true}) {
      for (const bool recomputed : {false, true}) {
        Graph graph = two_layers(activation, read_twice, {recomputed ? Parts::all() : Parts()});
        fuse_activation_gradients(graph);
        for (int round = 0; round < 2; ++round) {  // a second one finds nothing to do
          keep_slopes(graph);
          const Kept kept = kept_in(graph);
          EXPECT_EQ(kept.slopes, std::vector<bool>(recomputed ? 2 : 1, true));
          EXPECT_EQ(kept.gradients, std::vector{Activation::kKeptSlope});
        }
      }
    }
  }
}

// Of whole groups; other types keep slopes as they are.
TEST(KeepSlopes, AsBytesInBf16) {
  for (const auto& [dtype, width, expected] : {std::tuple{DType::kF32, 16, DType::kF32},
                                               {DType::kF16, 24, DType::kF16},
                                               {DType::kBF16, 48, DType::kSlope8},
                                               {DType::kBF16, 24, DType::kBF16}}) {
    Graph graph = two_layers(Activation::kGelu, false, {Parts::all()}, dtype, width);
    fuse_activation_gradients(graph);
    keep_slopes(graph);
    const bool keeps = dtype != DType::kBF16 || expected == DType::kSlope8;
    EXPECT_EQ(kept_in(graph).slopes, std::vector<bool>(2, keeps));
    EXPECT_EQ(kept_in(graph).gradients,
              std::vector{keeps ? Activation::kKeptSlope : Activation::kGelu});
    for (const Node& node : graph.nodes()) {
      const auto* layer = dynamic_cast<const Linear*>(node.op.get());
      if (layer == nullptr || layer->spec.activation == Activation::kNone) continue;
      EXPECT_EQ(graph.value(node.outputs[0]).desc.dtype, dtype);
      EXPECT_EQ(graph.value(node.outputs[1]).desc.dtype, expected);
    }
  }
}

TEST(KeepSlopes, NotWhereTheArgumentIsNeeded) {
  Graph made_again = two_layers(Activation::kGelu, false, {Parts{Part::kActivations}});
  ASSERT_EQ(count(made_again, "activation_again"), 1);
  Graph read_outside = two_layers(Activation::kGelu, false);
  for (const Node& node : read_outside.nodes()) {
    if (node.in_forward && node.outputs.size() > 1) read_outside.keep(node.outputs[1]);
  }
  for (Graph* graph : {&made_again, &read_outside}) {
    fuse_activation_gradients(*graph);
    keep_slopes(*graph);
    EXPECT_EQ(kept_in(*graph).slopes, std::vector<bool>{false});
    EXPECT_EQ(kept_in(*graph).gradients, std::vector{Activation::kGelu});
  }
  Graph relu = two_layers(Activation::kRelu, false);
  keep_slopes(relu);
  EXPECT_EQ(kept_in(relu).slopes, std::vector<bool>{false});
  EXPECT_EQ(kept_in(relu).gradients, std::vector{Activation::kRelu});
}

TEST(FuseBiasGradients, AnActivationInBetweenStaysAsItIs) {
  Graph graph = layer(Activation::kGelu);
  const size_t before = graph.nodes().size();
  fuse_bias_gradients(graph);
  EXPECT_EQ(graph.nodes().size(), before);
}

}  // namespace
}  // namespace snug
