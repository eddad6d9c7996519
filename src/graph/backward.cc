#include "graph/backward.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"

namespace snug {

class BackwardPass : public GradientWriter {
 public:
  BackwardPass(Graph& graph, const Recomputation& recompute);
  void run();

  ValueId gradient_of(ValueId y) override;
  Target gradient_for(ValueId x) override;
  ValueId saved(ValueId v) override;
  void emit(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) override;

 private:
  enum class Way : uint8_t { kKeep, kRepeat, kRemake };

  void find_producers();
  void find_ways();
  void find_values_that_need_gradients();
  ValueId clone_of(ValueId v);
  void make(ValueId clone);
  bool read_elsewhere(ValueId v) const { return read_elsewhere_[size_t(v)]; }
  bool is_made(ValueId v) const { return producer_[size_t(v)] >= 0; }
  std::optional<Remake> remake_of(const Node& node, size_t output) const;
  bool repeats(const Node& node) const;

  Graph& graph_;
  Recomputation recompute_;
  size_t forward_nodes_;
  std::vector<int> producer_;         // by value: forward node index, or -1
  std::vector<bool> read_elsewhere_;  // by value: a forward node of another segment reads it
  std::vector<Way> ways_;             // by value
  std::vector<bool> needs_gradient_;  // by value
  std::map<ValueId, ValueId> gradients_;
  // Of the current segment: what is made again, and the backward nodes.
  std::map<ValueId, ValueId> clones_, originals_;
  std::set<ValueId> made_;
  std::vector<Node> pending_;
  int segment_ = 0;
};

BackwardPass::BackwardPass(Graph& graph, const Recomputation& recompute)
    : graph_(graph), recompute_(recompute), forward_nodes_(graph.nodes_.size()) {
  recompute_.resize(graph.segments_.size());
  find_producers();
  find_ways();
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

bool BackwardPass::repeats(const Node& node) const {
  return node.op->always_repeated() || recompute_[size_t(node.segment)].has(node.part);
}

std::optional<Remake> BackwardPass::remake_of(const Node& node, size_t output) const {
  auto remake = node.op->remake(node, output);
  return remake && recompute_[size_t(node.segment)].has(remake->part) ? remake : std::nullopt;
}

// Other segments have their backward before or after: there, only what follows from values that
// stay can be made.
void BackwardPass::find_ways() {
  ways_.assign(graph_.values_.size(), Way::kKeep);
  std::set<ValueId> stays;
  for (size_t n = 0; n < forward_nodes_; ++n) {
    const Node& node = graph_.nodes_[n];
    // Made from parameters alone, it can be repeated anywhere; what its own backward reads stays.
    bool anywhere = std::ranges::any_of(
        node.outputs, [&](ValueId out) { return out != kNoValue && read_elsewhere(out); });
    for (ValueId in : node.inputs) anywhere &= in == kNoValue || !is_made(in);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const ValueId out = node.outputs[k];
      if (out == kNoValue || graph_.value(out).storage != Storage::kTransient) continue;
      const auto remake = remake_of(node, k);
      const bool alone = !read_elsewhere(out);
      if (repeats(node) && alone != anywhere) {
        ways_[size_t(out)] = Way::kRepeat;
      } else if (remake) {
        ways_[size_t(out)] = Way::kRemake;
        if (alone) continue;
        for (ValueId in : remake->inputs) {
          if (in != kNoValue && !read_elsewhere(in)) stays.insert(in);
        }
      }
    }
  }
  for (ValueId v : stays) ways_[size_t(v)] = Way::kKeep;
}

void BackwardPass::find_values_that_need_gradients() {
  needs_gradient_.assign(graph_.values_.size(), false);
  for (size_t v = 0; v < graph_.values_.size(); ++v) {
    needs_gradient_[v] = graph_.values_[v].trainable;
  }
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

ValueId BackwardPass::saved(ValueId v) {
  return v != kNoValue && size_t(v) < ways_.size() && ways_[size_t(v)] != Way::kKeep ? clone_of(v)
                                                                                     : v;
}

ValueId BackwardPass::clone_of(ValueId v) {
  const auto found = clones_.find(v);
  if (found != clones_.end()) return found->second;
  Value copy = graph_.value(v);
  copy.name += " (again)";
  graph_.values_.push_back(std::move(copy));
  const ValueId clone = ValueId(graph_.values_.size() - 1);
  originals_[clone] = v;
  return clones_[v] = clone;
}

void BackwardPass::emit(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
  pending_.push_back(
      {std::move(op), std::move(inputs), std::move(outputs), segment_, Part::kSums, false});
}

// Writes the node that makes `clone`, and before it those that make what it reads.
void BackwardPass::make(ValueId clone) {
  const auto original = originals_.find(clone);
  if (original == originals_.end() || made_.contains(clone)) return;
  const ValueId v = original->second;
  Node node = graph_.nodes_[size_t(producer_[size_t(v)])];
  if (ways_[size_t(v)] == Way::kRemake) {
    const size_t output =
        size_t(std::find(node.outputs.begin(), node.outputs.end(), v) - node.outputs.begin());
    Remake remake = *remake_of(node, output);
    node.op = std::move(remake.op);
    node.inputs = std::move(remake.inputs);
    node.outputs = {v};
  }
  for (ValueId& in : node.inputs) make(in = saved(in));
  for (ValueId& out : node.outputs) {
    if (out != kNoValue) {
      made_.insert(out = clone_of(out));  // also the kept ones: an operator writes all its outputs
    }
  }
  node.in_forward = false;
  node.segment = segment_;
  graph_.nodes_.push_back(std::move(node));
}

void BackwardPass::run() {
  for (segment_ = int(graph_.segments_.size()) - 1; segment_ >= 0; --segment_) {
    for (int n = int(forward_nodes_) - 1; n >= 0; --n) {
      if (graph_.nodes_[size_t(n)].segment != segment_) continue;
      const Node node = graph_.nodes_[size_t(n)];
      node.op->backward(node, *this);
    }
    for (Node& node : pending_) {
      for (ValueId in : node.inputs) make(in);
      graph_.nodes_.push_back(std::move(node));
    }
    pending_.clear();
    clones_.clear();
    originals_.clear();
    made_.clear();
  }
}

void append_backward(Graph& graph, const Recomputation& recompute) {
  BackwardPass(graph, recompute).run();
}

}  // namespace snug
