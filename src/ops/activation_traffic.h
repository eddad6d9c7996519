// What recomputed layers keep, put aside outside of the arena between forward and backward. Copies
// run beside the computation where the device can do that: a stow or fetch starts one, an await is
// where it must have ended. Lifetimes are those of the nodes that name a value, so a value being
// copied keeps its place without any rule of its own. Where the bytes lie is the plan's
// (ArenaLayout::stowed).
#pragma once

#include "graph/graph.h"
#include "graph/recompute.h"

namespace snug {

// inputs {value}; outputs {}
class StowActivation final : public Op {
 public:
  explicit StowActivation(int slot) : slot(slot) {}
  std::string_view name() const override { return "stow_activation"; }
  void run(const Call& call) const override;

  const int slot;  // of Graph::stowed()
};

// inputs {}; outputs {value}
class FetchActivation final : public Op {
 public:
  explicit FetchActivation(int slot) : slot(slot) {}
  std::string_view name() const override { return "fetch_activation"; }
  void run(const Call& call) const override;

  const int slot;
};

// inputs {value}, whose copy has ended behind this node; outputs {}
class AwaitActivation final : public Op {
 public:
  explicit AwaitActivation(int slot) : slot(slot) {}
  std::string_view name() const override { return "await_activation"; }
  void run(const Call&) const override {}  // the CPU copies at once

  const int slot;
};

// Rewrites a finished step graph: what segments that are recomputed whole keep for backward is
// stowed as soon as it is made, gone when the next such value is made, and fetched while the layer
// before the one that needs it has its backward.
void move_activations_outside(Graph& graph, const Recomputation& recompute);

}  // namespace snug
