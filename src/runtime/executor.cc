#include "runtime/executor.h"

#include "core/error.h"

namespace snug {

Executor::Executor(const Graph& graph, const MemoryPlan& plan, const ArenaLayout& layout,
                   std::byte* base, Memory* outside)
    : graph_(graph),
      plan_(plan),
      layout_(layout),
      base_(base),
      outside_(outside),
      dims_(plan.capacity) {
  const auto add = [&](const std::vector<ValueId>& list) {
    for (ValueId v : list) {
      Tensor tensor;
      Rows rows = Rows::kFixed;
      if (v != kNoValue) {
        const TensorDesc& desc = graph.value(v).desc;
        tensor = {address(v), dtype(v), desc.row_count(plan.capacity), desc.cols};
        rows = desc.rows_are;
      }
      tensors_.push_back(tensor);
      rows_are_.push_back(rows);
    }
  };
  size_t slots = 0;
  for (const Node& node : graph.nodes()) slots += node.inputs.size() + node.outputs.size();
  nodes_.reserve(graph.nodes().size());
  tensors_.reserve(slots);
  rows_are_.reserve(slots);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    Prepared prepared{.op = node.op.get(),
                      .first_in = tensors_.size(),
                      .count_in = node.inputs.size(),
                      .first_out = 0,
                      .count_out = node.outputs.size(),
                      .workspace = {},
                      .dying = dying_inputs(int(n))};
    add(node.inputs);
    prepared.first_out = tensors_.size();
    add(node.outputs);
    const Placement& workspace = plan.workspaces[n];
    prepared.workspace = {base + layout.transient.offset + workspace.offset, workspace.bytes};
    nodes_.push_back(prepared);
  }
}

std::byte* Executor::address(ValueId id) const {
  const Value& value = graph_.value(id);
  const auto slot = size_t(value.slot);
  switch (value.storage) {
    case Storage::kTransient:
      return base_ + layout_.transient.offset + plan_.values[size_t(id)].offset;
    case Storage::kParameter: {
      const ParameterPlace& place = layout_.parameters[slot];
      const bool is_copy = value.desc.dtype != DType::kF32 && value.desc.dtype != DType::kI8;
      SNUG_CHECK(is_copy || !place.split);
      return base_ + (is_copy ? place.copy : place.weight);
    }
    case Storage::kScales:
      return base_ + layout_.parameters[slot].scales;
    case Storage::kGradient:
      return base_ + layout_.parameters[slot].gradient;
    case Storage::kScalar:
      return base_ + layout_.scalars.offset + slot * sizeof(double);
  }
  return nullptr;
}

// Of the last node none: who runs the graph may read what is kept.
uint64_t Executor::dying_inputs(int node) const {
  const std::vector<ValueId>& inputs = graph_.nodes()[size_t(node)].inputs;
  SNUG_CHECK(inputs.size() <= 64);
  uint64_t dying = 0;
  for (size_t i = 0; i < inputs.size() && node + 1 < int(graph_.nodes().size()); ++i) {
    const bool placed =
        inputs[i] != kNoValue && graph_.value(inputs[i]).storage == Storage::kTransient;
    if (placed && plan_.values[size_t(inputs[i])].last == node) dying |= uint64_t{1} << i;
  }
  return dying;
}

DType Executor::dtype(ValueId id) const {
  const Value& value = graph_.value(id);
  const bool rounded =
      value.storage == Storage::kGradient &&
      layout_.parameters[size_t(value.slot)].gradient_form == GradientForm::kRounded;
  return rounded ? DType::kBF16 : value.desc.dtype;
}

void Executor::resize(const Dims& dims) {
  const Dims& capacity = plan_.capacity;
  SNUG_CHECK(dims.tokens <= capacity.tokens && dims.sequences <= capacity.sequences &&
             dims.longest <= capacity.longest && dims.targets <= capacity.targets);
  dims_ = dims;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (rows_are_[t] == Rows::kTokens) tensors_[t].rows = dims.tokens;
    if (rows_are_[t] == Rows::kSequences) tensors_[t].rows = dims.sequences;
    if (rows_are_[t] == Rows::kTargets) tensors_[t].rows = dims.targets;
  }
}

void Executor::run(const Batch& batch, const StepContext& step) {
  for_each(batch.dims, [&](const Placed& node) {
    node.op.run({.in = node.in,
                 .out = node.out,
                 .workspace = node.workspace,
                 .batch = &batch,
                 .step = &step,
                 .outside = outside_,
                 .stowed = layout_.stowed});
  });
}

Tensor Executor::tensor(ValueId id) const {
  const TensorDesc& desc = graph_.value(id).desc;
  return {address(id), dtype(id), desc.row_count(dims_), desc.cols};
}

double* Executor::scalar(ValueId id) const { return reinterpret_cast<double*>(address(id)); }

}  // namespace snug
