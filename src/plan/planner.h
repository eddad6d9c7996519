// Chooses how a run uses its memory: the capacity of a micro-batch, which parts of which layers are
// recomputed, how much of a language model's logits exists at once, and whether weights are kept in
// the type of products too, so that the whole process stays inside the budget and as little time as
// possible is lost. A pure function of its inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "plan/arena_layout.h"
#include "plan/cost_model.h"
#include "plan/memory_plan.h"
#include "plan/plan_choice.h"
#include "snug/snug.h"

namespace snug {

// What the process needs besides the arena.
struct ProcessFacts {
  // Occupied before snug asks for anything: program, libraries, tokenizer.
  uint64_t overhead_bytes = 0;
  // The most the process has occupied so far (reading the tokenizer, the data).
  uint64_t startup_peak_bytes = 0;
  // Buffers of the data pipeline and of file input and output for a given capacity.
  std::function<uint64_t(const Dims& capacity)> buffer_bytes;
  // Where the device is not the host: what the process occupies there besides buffers.
  uint64_t host_bytes = 0;
  // Growth that no table counts. Empty: none.
  std::function<uint64_t(const Dims& capacity)> slack_bytes;
  // What launching so many nodes for micro-batches of this capacity takes besides; branches: with
  // copies beside them. Empty: nothing.
  std::function<uint64_t(const Dims& capacity, size_t nodes, bool branches)> launch_bytes;
  // By which two starts of one program differ: the printed minimum leaves it.
  uint64_t tolerance_bytes = 0;
  uint64_t arena_granule = 1;  // the device gives memory in multiples of this
  // What the device keeps inside the arena besides tensors; empty: nothing.
  std::function<size_t(const Dims& capacity)> table_bytes;
};

struct PlanRequest {
  const Model* model = nullptr;
  GraphOptions graph;  // purpose, pooling; what a PlanChoice has is the planner's
  Optimizer optimizer = Optimizer::kAdamW;
  Workload workload;
  ProcessFacts process;
  uint64_t budget_bytes = 0;
  // Beside a GPU: of the process's other memory.
  uint64_t host_budget_bytes = std::numeric_limits<uint64_t>::max();
  Device device;
  std::optional<Speed> speed;  // measured on the device; empty: derived
  std::optional<Recomputation> pinned_recompute;
  std::optional<Offload> pinned_offload;
  // With a pinned offload; then all layers are recomputed, if nothing else is pinned.
  bool activations_outside = false;
  std::optional<int64_t> pinned_capacity;   // tokens
  std::optional<PlanChoice> pinned_choice;  // all of it: a resumed run's
};

struct Plan {
  bool fits = false;
  uint64_t budget_bytes = 0;
  uint64_t minimum_budget_bytes = 0;
  uint64_t overhead_bytes = 0, buffer_bytes = 0, arena_bytes = 0, peak_bytes = 0,
           host_peak_bytes = 0;
  Workload workload;
  Device device;
  DType compute = DType::kF32;
  Optimizer optimizer = Optimizer::kAdamW;
  Dims capacity;
  PlanChoice choice;
  int layers = 0;
  int kept_layers = 0;        // of GraphOptions
  int64_t micro_batches = 0;  // of a step with the most tokens
  // Of average length; a prediction only where the request's speed was measured.
  double step_seconds = 0;
  std::optional<double> tokens_per_second;  // that prediction
  std::vector<PlanItem> items;              // at the moment of the peak; they add up to peak_bytes

  // What the executor needs. Shared, because graphs are referred to by executors.
  std::shared_ptr<const StepGraph> step;     // the request's purpose
  std::shared_ptr<const StepGraph> scoring;  // evaluation during training; null otherwise
  std::shared_ptr<const StepGraph> prefix;   // of the layers whose output is kept; null: of none
  MemoryPlan step_memory, scoring_memory, prefix_memory;
  ArenaLayout layout;

  // A step never has more than one micro-batch: gradients add up over nothing.
  bool only_pass() const { return workload.step_tokens <= capacity.tokens; }
};

// When nothing fits, `fits` is false and the plan describes the smallest choice;
// minimum_budget_bytes is always set.
Plan make_plan(const PlanRequest& request);

// The best plans for budgets from the smallest to what is needed without any limit, each faster
// than the one before; the request's own budget is among them where it fits.
std::vector<Plan> sweep_plans(const PlanRequest& request);

// The least budget with which a request can be run, whatever its own budget.
uint64_t minimum_budget(const PlanRequest& request);

}  // namespace snug
