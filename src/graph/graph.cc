#include "graph/graph.h"

#include "core/error.h"

namespace snug {

int64_t TensorDesc::row_count(const Dims& dims) const {
  switch (rows_are) {
    case Rows::kFixed:
      return rows;
    case Rows::kTokens:
      return dims.tokens;
    case Rows::kSequences:
      return dims.sequences;
    case Rows::kTargets:
      return dims.targets;
    case Rows::kCache:
      return dims.sequences * dims.longest;
  }
  return rows;
}

size_t TensorDesc::bytes(const Dims& dims) const {
  return size_t(row_count(dims)) * size_t(cols) * dtype_bytes(dtype);
}

ValueId Graph::add_value(std::string name, TensorDesc desc) {
  values_.push_back({std::move(name), desc, Storage::kTransient, -1, false});
  return ValueId(values_.size() - 1);
}

ValueId Graph::add_parameter(std::string name, TensorDesc desc, int slot, bool trainable) {
  values_.push_back({std::move(name), desc, Storage::kParameter, slot, trainable});
  return ValueId(values_.size() - 1);
}

ValueId Graph::add_scales(std::string name, TensorDesc desc, int slot) {
  values_.push_back({std::move(name), desc, Storage::kScales, slot, false});
  return ValueId(values_.size() - 1);
}

ValueId Graph::add_copy(std::string name, TensorDesc desc, ValueId parameter) {
  values_.push_back({std::move(name), desc, Storage::kTransient, value(parameter).slot, false});
  return ValueId(values_.size() - 1);
}

ValueId Graph::add_scalar(std::string name, DType dtype) {
  values_.push_back({std::move(name), {.dtype = dtype}, Storage::kScalar, scalars_++, false});
  return ValueId(values_.size() - 1);
}

size_t Graph::heap_bytes() const {
  constexpr size_t kOperator = 160;  // the largest of them, counted by its owner
  const auto block = [](size_t bytes) {
    return bytes == 0 ? 0 : (bytes + 2 * sizeof(size_t) + 15) / 16 * 16;
  };  // as malloc rounds
  size_t bytes =
      block(values_.capacity() * sizeof(Value)) + block(nodes_.capacity() * sizeof(Node));
  for (const Value& value : values_) {
    const bool inside = value.name.capacity() <= std::string().capacity();
    bytes += block(inside ? 0 : value.name.capacity() + 1);
  }
  for (const Node& node : nodes_) {
    bytes += block(kOperator) + block(node.inputs.capacity() * sizeof(ValueId)) +
             block(node.outputs.capacity() * sizeof(ValueId));
  }
  return bytes;
}

void Graph::begin_segment(std::string name) {
  segments_.push_back(std::move(name));
  part_ = Part::kSums;
}

void Graph::add_node(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
  SNUG_CHECK(!segments_.empty());
  nodes_.push_back({std::move(op), std::move(inputs), std::move(outputs), int(segments_.size()) - 1,
                    part_, true});
}

void Graph::seed_gradient(ValueId value, ValueId gradient) { seeds_.emplace_back(value, gradient); }

void Graph::keep(ValueId value) { kept_.push_back(value); }

void Graph::hold(ValueId value) { held_.push_back(value); }

int Graph::stow(ValueId value) {
  stowed_.push_back(value);
  return int(stowed_.size()) - 1;
}

void Graph::give(ValueId value) { given_.push_back(value); }

void Graph::drop_nodes(const std::vector<bool>& dropped) {
  std::vector<Node> kept;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (!dropped[n]) kept.push_back(std::move(nodes_[n]));
  }
  nodes_ = std::move(kept);
}

void Graph::insert_nodes(const std::multimap<size_t, Node>& before,
                         const std::multimap<size_t, Node>& behind) {
  std::vector<Node> nodes;
  const auto put = [&](const std::multimap<size_t, Node>& added, size_t n) {
    for (auto [at, end] = added.equal_range(n); at != end; ++at) nodes.push_back(at->second);
  };
  for (size_t n = 0; n < nodes_.size(); ++n) {
    put(before, n);
    nodes.push_back(std::move(nodes_[n]));
    put(behind, n);
  }
  nodes_ = std::move(nodes);
}

}  // namespace snug
