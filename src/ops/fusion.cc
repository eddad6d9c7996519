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
  std::map<ValueId, Maker>
      written_by;  // a gradient whose maker can add it up, while nobody has changed it since
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
    if (norm != nullptr && !norm->spec.add_x && node.outputs[1] != kNoValue) {
      written_by[node.outputs[1]] = {n, 4};
    }
    if (dynamic_cast<const AttentionGradient*>(node.op.get()) != nullptr) {
      written_by[node.outputs[0]] = {n, 1};
    }
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
    if (epilogue != nullptr && is_gelu(epilogue->activation)) {
      const ValueId dy = node.inputs[0], kept = node.inputs[1];
      const ptrdiff_t before = used[size_t(dy)];
      Node* const maker = before == kNever ? nullptr : &graph.node(size_t(before));
      const auto* product =
          maker ? dynamic_cast<const LinearInputGradient*>(maker->op.get()) : nullptr;
      const auto unchanged = [&](ValueId v) {
        return v == kNoValue || written[size_t(v)] < before;
      };
      // Where the argument is made again between the two, the product waits for it, as long as its
      // factors do.
      if (product != nullptr && maker->outputs[0] == dy && !product->accumulate &&
          product->activation == Activation::kNone &&
          std::ranges::all_of(maker->inputs, unchanged)) {
        Node fused = *maker;
        fused.op =
            std::make_shared<LinearInputGradient>(false, product->layout, epilogue->activation);
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

namespace {

// The layer that could keep its slope in its second output. Not one with adapters: on a GPU no
// product does their GELU, and one more tensor to write is what a kernel behind it pays.
const Linear* may_keep_slope(const Node& node) {
  const auto* layer = dynamic_cast<const Linear*>(node.op.get());
  const bool may = layer != nullptr && is_gelu(layer->spec.activation) &&
                   layer->spec.adapters.first_columns.empty() && node.outputs.size() > 1 &&
                   node.outputs[1] != kNoValue;
  return may ? layer : nullptr;
}

// The input that a gradient reads for GELU's derivative; none: past the last.
size_t slope_input(const Node& node) {
  const auto* epilogue = dynamic_cast<const LinearEpilogueGradient*>(node.op.get());
  if (epilogue != nullptr && is_gelu(epilogue->activation)) return 1;
  const auto* product = dynamic_cast<const LinearInputGradient*>(node.op.get());
  return product != nullptr && is_gelu(product->activation) ? 2 : node.inputs.size();
}

// Whether slopes can take an argument's place.
bool may_be_slopes(const TensorDesc& argument) {
  return slope_type(argument.dtype) != DType::kSlope8 || argument.cols % SlopeBytes::kGroup == 0;
}

}  // namespace

void keep_slopes(Graph& graph) {
  // Whoever else reads or writes it needs it as it is.
  std::vector<bool> stays;
  for (const Value& value : graph.values()) stays.push_back(!may_be_slopes(value.desc));
  const auto stay = [&](ValueId v) {
    if (v != kNoValue) stays[size_t(v)] = true;
  };
  for (const auto* outside : {&graph.kept(), &graph.held(), &graph.given()}) {
    std::ranges::for_each(*outside, stay);
  }
  for (const Node& node : graph.nodes()) {
    const size_t slope = slope_input(node), kept = may_keep_slope(node) ? 1 : node.outputs.size();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (i != slope) stay(node.inputs[i]);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (i != kept) stay(node.outputs[i]);
    }
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(n);
    const size_t slope = slope_input(node);
    if (const Linear* const layer = may_keep_slope(node);
        layer && !stays[size_t(node.outputs[1])]) {
      LinearSpec spec = layer->spec;
      spec.keeps_slope = true;
      node.op = linear(spec);
      graph.set_dtype(node.outputs[1], slope_type(graph.value(node.outputs[1]).desc.dtype));
    } else if (slope < node.inputs.size() && !stays[size_t(node.inputs[slope])]) {
      const auto* const product = dynamic_cast<const LinearInputGradient*>(node.op.get());
      if (product != nullptr) {
        node.op = std::make_shared<LinearInputGradient>(product->accumulate, product->layout,
                                                        Activation::kKeptSlope);
      } else {
        node.op = std::make_shared<LinearEpilogueGradient>(Activation::kKeptSlope);
      }
    }
  }
}

}  // namespace snug
