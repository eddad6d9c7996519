#include "ops/fusion.h"

#include <algorithm>
#include <map>

#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/residual_norm.h"

namespace snug {

void fuse_bias_gradients(Graph& graph) {
  struct Maker {
    size_t node, slot;  // of the output that takes the sums
  };
  std::map<ValueId, Maker> written_by;  // a gradient whose maker can add it up, while nobody has changed it since
  std::vector<bool> dropped(graph.nodes().size(), false);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(n);
    const auto* epilogue = dynamic_cast<const LinearEpilogueGradient*>(node.op.get());
    if (epilogue != nullptr && epilogue->activation == Activation::kNone) {
      const auto found = written_by.find(node.inputs[0]);
      if (found != written_by.end()) {
        const auto [maker, slot] = found->second;
        std::vector<ValueId>& outputs = graph.node(maker).outputs;
        outputs.resize(slot + 1, kNoValue);
        outputs[slot] = node.outputs[1];
        dropped[n] = true;
        written_by.erase(found);
        continue;
      }
    }
    for (ValueId out : node.outputs) written_by.erase(out);
    const auto* norm = dynamic_cast<const NormGradient*>(node.op.get());
    if (norm != nullptr && !norm->spec.add_x && node.outputs[1] != kNoValue) written_by[node.outputs[1]] = {n, 4};
    if (dynamic_cast<const AttentionGradient*>(node.op.get()) != nullptr) written_by[node.outputs[0]] = {n, 1};
  }
  graph.drop_nodes(dropped);
}

void fuse_activation_gradients(Graph& graph) {
  constexpr ptrdiff_t kNever = -1;
  // The last nodes to read or write a value, and to write it.
  std::vector<ptrdiff_t> used(graph.values().size(), kNever), written = used;
  std::vector<bool> dropped(graph.nodes().size(), false);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const auto* epilogue = dynamic_cast<const LinearEpilogueGradient*>(node.op.get());
    if (epilogue != nullptr &&
        (epilogue->activation == Activation::kGelu || epilogue->activation == Activation::kGeluTanh)) {
      const ValueId dy = node.inputs[0], kept = node.inputs[1];
      const ptrdiff_t before = used[size_t(dy)];
      Node* const maker = before == kNever ? nullptr : &graph.node(size_t(before));
      const auto* product = maker ? dynamic_cast<const LinearInputGradient*>(maker->op.get()) : nullptr;
      const auto unchanged = [&](ValueId v) { return v == kNoValue || written[size_t(v)] < before; };
      // Where the argument is made again between the two, the product waits for it, as long as its factors do.
      if (product != nullptr && maker->outputs[0] == dy && !product->accumulate &&
          product->activation == Activation::kNone && std::ranges::all_of(maker->inputs, unchanged)) {
        Node fused = *maker;
        fused.op = std::make_shared<LinearInputGradient>(false, product->layout, epilogue->activation);
        fused.inputs.push_back(kept);
        fused.outputs.push_back(node.outputs[1]);
        const bool waits = !unchanged(kept);
        dropped[waits ? size_t(before) : n] = true;
        (waits ? graph.node(n) : *maker) = std::move(fused);
        if (!waits) continue;
      }
    }
    for (ValueId in : node.inputs) {
      if (in != kNoValue) used[size_t(in)] = ptrdiff_t(n);
    }
    for (ValueId out : node.outputs) {
      if (out != kNoValue) used[size_t(out)] = written[size_t(out)] = ptrdiff_t(n);
    }
  }
  graph.drop_nodes(dropped);
}

}  // namespace snug
