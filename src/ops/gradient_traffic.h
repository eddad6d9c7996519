// Gradients that live on the host: fetched to the device right before backward adds to them, and
// stored right after. Only for devices with memory of their own; the bytes are the plan's
// (outside_gradient in plan/arena_layout.h).
#pragma once

#include <functional>

#include "graph/graph.h"

namespace snug {

// inputs {}; outputs {gradient}: what the earlier micro-batches of the step have added up, zeros
// for the first; where this micro-batch has stored it before (a table that is the head's matrix
// too), that in any case.
class FetchGradient final : public Op {
 public:
  FetchGradient(int slot, bool stored_before) : slot(slot), stored_before(stored_before) {}
  std::string_view name() const override { return "fetch_gradient"; }
  void run(const Call& call) const override;

  const int slot;  // of the parameter
  const bool stored_before;
};

// inputs {gradient}; outputs {}
class StoreGradient final : public Op {
 public:
  explicit StoreGradient(int slot) : slot(slot) {}
  std::string_view name() const override { return "store_gradient"; }
  void run(const Call& call) const override;

  const int slot;
};

// Rewrites a finished step graph: the gradients of parameters become transient, between a fetch and
// a store in every segment whose backward adds to them. Those of slots that are `rounded` have no
// fetch: the only micro-batch of a step writes them, in bf16.
void move_gradients_outside(Graph& graph, const std::function<bool(int slot)>& rounded);

}  // namespace snug
