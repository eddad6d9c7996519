// Walks a planned graph on any device. All pointers are resolved once; a micro-batch only sets the
// row counts of tensors that scale with it.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/arena_layout.h"
#include "plan/memory_plan.h"

namespace snug {

class Executor {
 public:
  // The graph must outlive the executor. `base` is the arena's; what a graph stows goes into
  // `outside` where run() is used.
  Executor(const Graph& graph, const MemoryPlan& plan, const ArenaLayout& layout, std::byte* base,
           Memory* outside = nullptr);

  void run(const Batch& batch, const StepContext& step);

  // One node as it lies in memory.
  struct Placed {
    const Op& op;
    std::span<const Tensor> in, out;
    std::span<std::byte> workspace;
    uint64_t dying;  // a bit for each input that nobody reads again
  };
  // Sets the row counts to those of a micro-batch and calls body(Placed) for all nodes in order.
  template <class Body>
  void for_each(const Dims& dims, const Body& body) {
    resize(dims);
    const std::span<const Tensor> all = tensors_;
    for (const Prepared& node : nodes_) {
      body(Placed{*node.op, all.subspan(node.first_in, node.count_in),
                  all.subspan(node.first_out, node.count_out), node.workspace, node.dying});
    }
  }

  // A value's memory, with the sizes of the last run.
  Tensor tensor(ValueId value) const;
  double* scalar(ValueId value) const;

 private:
  struct Prepared {
    const Op* op;
    size_t first_in, count_in, first_out, count_out;  // in tensors_
    std::span<std::byte> workspace;
    uint64_t dying;
  };

  void resize(const Dims& dims);
  std::byte* address(ValueId value) const;
  uint64_t dying_inputs(int node) const;
  DType dtype(ValueId value) const;  // as it lies in memory

  const Graph& graph_;
  const MemoryPlan& plan_;
  const ArenaLayout& layout_;
  std::byte* base_;
  Memory* outside_;
  std::vector<Prepared> nodes_;
  std::vector<Tensor> tensors_;
  std::vector<Rows> rows_are_;  // by tensor
  Dims dims_;
};

}  // namespace snug
