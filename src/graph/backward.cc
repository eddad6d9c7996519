#include "graph/backward.h"

#include <map>
#include <set>

#include "core/error.h"

namespace snug {

class BackwardPass : public GradientWriter {
 public:
  BackwardPass(Graph& graph, const std::vector<bool>& recompute);
  void run();

  ValueId gradient_of(ValueId y) override;
  Target gradient_for(ValueId x) override;
  ValueId saved(ValueId v) override;
  void emit(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) override;

 private:
  void find_producers();
  void find_values_that_need_gradients();
  void emit_recomputation(int segment);
  ValueId clone_of(ValueId v);
  bool recomputed(ValueId v) const;

  Graph& graph_;
  std::vector<bool> recompute_;
  size_t forward_nodes_;
  std::vector<int> producer_;         // by value: forward node index, or -1
  std::vector<bool> read_elsewhere_;  // by value: a forward node of another segment reads it, so it is kept
  std::vector<bool> needs_gradient_;  // by value
  std::map<ValueId, ValueId> gradients_;
  std::map<ValueId, ValueId> clones_;
  std::vector<Node> pending_;  // backward nodes of the current segment
  int segment_ = 0;
};

BackwardPass::BackwardPass(Graph& graph, const std::vector<bool>& recompute)
    : graph_(graph), recompute_(recompute), forward_nodes_(graph.nodes_.size()) {
  recompute_.resize(graph.segments_.size(), false);
  find_producers();
  find_values_that_need_gradients();
  for (const auto& [value, gradient] : graph.seeds_) gradients_[value] = gradient;
}

void BackwardPass::find_producers() {
  producer_.assign(graph_.values_.size(), -1);
  read_elsewhere_.assign(graph_.values_.size(), false);
  for (size_t n = 0; n < forward_nodes_; ++n) {
    for (ValueId out : graph_.nodes_[n].outputs) {
      if (out != kNoValue) producer_[size_t(out)] = int(n);
    }
    for (ValueId in : graph_.nodes_[n].inputs) {
      if (in == kNoValue || producer_[size_t(in)] < 0) continue;
      const int home = graph_.nodes_[size_t(producer_[size_t(in)])].segment;
      if (home != graph_.nodes_[n].segment) read_elsewhere_[size_t(in)] = true;
    }
  }
}

void BackwardPass::find_values_that_need_gradients() {
  needs_gradient_.assign(graph_.values_.size(), false);
  for (size_t v = 0; v < graph_.values_.size(); ++v) needs_gradient_[v] = graph_.values_[v].trainable;
  for (size_t n = 0; n < forward_nodes_; ++n) {
    bool any = false;
    for (ValueId in : graph_.nodes_[n].inputs) any |= in != kNoValue && needs_gradient_[size_t(in)];
    for (ValueId out : graph_.nodes_[n].outputs) {
      if (out != kNoValue) needs_gradient_[size_t(out)] = any;
    }
  }
}

ValueId BackwardPass::gradient_of(ValueId y) {
  const auto found = gradients_.find(y);
  return found == gradients_.end() ? kNoValue : found->second;
}

GradientWriter::Target BackwardPass::gradient_for(ValueId x) {
  if (x == kNoValue || !needs_gradient_[size_t(x)]) return {};
  const auto found = gradients_.find(x);
  if (found != gradients_.end()) return {found->second, true};
  Value gradient = graph_.value(x);
  gradient.name = "d(" + gradient.name + ")";
  gradient.trainable = false;
  const bool parameter = gradient.slot >= 0;  // or a copy of one
  if (parameter) {
    gradient.storage = Storage::kGradient;
    gradient.desc.dtype = DType::kF32;  // sums over micro-batches
  }
  graph_.values_.push_back(std::move(gradient));
  const ValueId id = ValueId(graph_.values_.size() - 1);
  gradients_[x] = id;
  return {id, parameter};  // gradients of parameters add up over micro-batches
}

bool BackwardPass::recomputed(ValueId v) const {
  if (size_t(v) >= producer_.size() || producer_[size_t(v)] < 0 || read_elsewhere_[size_t(v)]) return false;
  const Node& producer = graph_.nodes_[size_t(producer_[size_t(v)])];
  return producer.segment == segment_ && (recompute_[size_t(segment_)] || producer.op->always_repeated());
}

ValueId BackwardPass::saved(ValueId v) { return v != kNoValue && recomputed(v) ? clone_of(v) : v; }

ValueId BackwardPass::clone_of(ValueId v) {
  const auto found = clones_.find(v);
  if (found != clones_.end()) return found->second;
  Value copy = graph_.value(v);
  copy.name += " (again)";
  graph_.values_.push_back(std::move(copy));
  return clones_[v] = ValueId(graph_.values_.size() - 1);
}

void BackwardPass::emit(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
  pending_.push_back({std::move(op), std::move(inputs), std::move(outputs), segment_, false});
}

// Runs again the forward nodes that produce a value backward asked for, and whatever those need in turn.
void BackwardPass::emit_recomputation(int segment) {
  std::set<int> again;
  for (int n = int(forward_nodes_) - 1; n >= 0; --n) {
    const Node& node = graph_.nodes_[size_t(n)];
    if (node.segment != segment) continue;
    bool wanted = false;
    for (ValueId out : node.outputs) wanted |= out != kNoValue && clones_.count(out) > 0;
    if (!wanted) continue;
    again.insert(n);
    for (ValueId in : node.inputs) {
      if (in != kNoValue && recomputed(in)) clone_of(in);
    }
  }
  for (int n : again) {
    Node copy = graph_.nodes_[size_t(n)];
    for (ValueId& in : copy.inputs) in = saved(in);
    for (ValueId& out : copy.outputs) {
      if (out != kNoValue) out = clone_of(out);  // also the kept ones: an operator writes all its outputs
    }
    copy.in_forward = false;
    graph_.nodes_.push_back(std::move(copy));
  }
}

void BackwardPass::run() {
  for (segment_ = int(graph_.segments_.size()) - 1; segment_ >= 0; --segment_) {
    for (int n = int(forward_nodes_) - 1; n >= 0; --n) {
      const Node node = graph_.nodes_[size_t(n)];
      if (node.segment == segment_) node.op->backward(node, *this);
    }
    emit_recomputation(segment_);
    for (Node& node : pending_) graph_.nodes_.push_back(std::move(node));
    pending_.clear();
    clones_.clear();
  }
}

void append_backward(Graph& graph, const std::vector<bool>& recompute) { BackwardPass(graph, recompute).run(); }

}  // namespace snug
