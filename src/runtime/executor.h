// Walks a planned graph. All pointers are resolved once; running a micro-batch only sets the row counts of tensors that
// scale with it.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/arena_layout.h"
#include "plan/memory_plan.h"

namespace snug {

class Executor {
 public:
  // The graph must outlive the executor. `base` is the arena's.
  Executor(const Graph& graph, const MemoryPlan& plan, const ArenaLayout& layout, std::byte* base);

  void run(const Batch& batch, const StepContext& step);
  // A value's memory, with the sizes of the last run.
  Tensor tensor(ValueId value) const;
  double* scalar(ValueId value) const;

 private:
  struct Prepared {
    const Op* op;
    size_t first_in, count_in, first_out, count_out;  // in tensors_
    std::span<std::byte> workspace;
  };

  std::byte* address(ValueId value) const;

  const Graph& graph_;
  const MemoryPlan& plan_;
  const ArenaLayout& layout_;
  std::byte* base_;
  std::vector<Prepared> nodes_;
  std::vector<Tensor> tensors_;
  std::vector<Rows> rows_are_;  // by tensor
  Dims dims_;
};

}  // namespace snug
