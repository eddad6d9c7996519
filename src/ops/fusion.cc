#include "ops/fusion.h"

#include <map>

#include "ops/linear.h"
#include "ops/residual_norm.h"

namespace snug {

void fuse_bias_gradients(Graph& graph) {
  std::map<ValueId, size_t> written_by;  // dx of a norm -> its node, while nobody has changed it since
  std::vector<bool> dropped(graph.nodes().size(), false);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(n);
    const auto* epilogue = dynamic_cast<const LinearEpilogueGradient*>(node.op.get());
    if (epilogue != nullptr && epilogue->activation == Activation::kNone) {
      const auto found = written_by.find(node.inputs[0]);
      if (found != written_by.end()) {
        Node& norm = graph.node(found->second);
        norm.outputs.resize(5, kNoValue);
        norm.outputs[4] = node.outputs[1];
        dropped[n] = true;
        written_by.erase(found);
        continue;
      }
    }
    for (ValueId out : node.outputs) written_by.erase(out);
    const auto* norm = dynamic_cast<const NormGradient*>(node.op.get());
    if (norm != nullptr && !norm->spec.add_x && node.outputs[1] != kNoValue) written_by[node.outputs[1]] = n;
  }
  graph.drop_nodes(dropped);
}

}  // namespace snug
