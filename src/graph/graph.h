// The step graph: forward and backward of one micro-batch as a flat list of nodes in execution
// order. One representation serves planning, running, evaluation and prediction. The graph holds no
// memory; it names values and says how large they are for given sizes of a micro-batch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/op.h"

namespace snug {

// Who owns a value's memory.
enum class Storage : uint8_t {
  kTransient,  // lives from its first to its last node; placed by the planner
  kParameter,  // a weight: `slot` is its index in the model's parameter table
  kGradient,   // the accumulated gradient of parameter `slot`
  kScales,     // what the channels of an int8 parameter are multiples of
  kScalar,     // a small result that outlives micro-batches (the loss); `slot` numbers them
};

struct Value {
  std::string name;
  TensorDesc desc;
  Storage storage = Storage::kTransient;
  int slot = -1;           // of a transient: the parameter it is a copy of
  bool trainable = false;  // parameters only: a gradient is wanted
};

class Graph {
 public:
  ValueId add_value(std::string name, TensorDesc desc);
  ValueId add_parameter(std::string name, TensorDesc desc, int slot, bool trainable);
  // Of an int8 parameter.
  ValueId add_scales(std::string name, TensorDesc desc, int slot);
  // A copy of a parameter in another type; its gradient is the parameter's.
  ValueId add_copy(std::string name, TensorDesc desc, ValueId parameter);
  ValueId add_scalar(std::string name, DType dtype);

  // Later nodes belong to this segment, and to this part of it, at first Part::kSums.
  void begin_segment(std::string name);
  void begin_part(Part part) { part_ = part; }
  void add_node(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs);
  // The loss operator computes the gradient of its input in its forward pass: backward starts from
  // there.
  void seed_gradient(ValueId value, ValueId gradient);

  // A value the caller reads after the run (logits, embeddings): it lives to the end of the graph.
  void keep(ValueId value);
  // A value whose contents stay from one run to the next: nothing else ever takes its place.
  void hold(ValueId value);
  // A value that no node makes: whoever runs the graph writes it first.
  void give(ValueId value);

  // A value that lies outside of the arena between its forward and its backward; the number of its
  // place there.
  int stow(ValueId value);

  // For rewrites of a finished graph.
  Node& node(size_t index) { return nodes_[index]; }
  void set_dtype(ValueId value, DType dtype) { values_[size_t(value)].desc.dtype = dtype; }
  void drop_nodes(const std::vector<bool>& dropped);
  // Puts nodes in front of and behind those with the given numbers.
  void insert_nodes(const std::multimap<size_t, Node>& before,
                    const std::multimap<size_t, Node>& behind);

  const std::vector<Value>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<std::string>& segments() const { return segments_; }
  const std::vector<ValueId>& kept() const { return kept_; }
  const std::vector<ValueId>& held() const { return held_; }
  const std::vector<ValueId>& given() const { return given_; }
  const std::vector<ValueId>& stowed() const { return stowed_; }  // by that number
  const Value& value(ValueId id) const { return values_[size_t(id)]; }
  int scalars() const { return scalars_; }
  // What the graph itself occupies: names, lists, operators. Grows with the number of layers.
  size_t heap_bytes() const;

 private:
  friend class BackwardPass;

  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<std::string> segments_;
  std::vector<ValueId> kept_, held_, given_, stowed_;
  std::vector<std::pair<ValueId, ValueId>> seeds_;
  Part part_ = Part::kSums;
  int scalars_ = 0;
};

}  // namespace snug
