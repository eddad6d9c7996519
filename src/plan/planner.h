// Chooses how a run uses its memory: the capacity of a micro-batch, how many layers are recomputed, how much of a language
// model's logits exists at once, and whether weights are kept in the type of products too, so that the whole process
// stays inside the budget and as little time as possible is lost. A pure function of its inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "plan/arena_layout.h"
#include "plan/memory_plan.h"
#include "snug/snug.h"

namespace snug {

// Which tokens have something to predict.
enum class TargetRule : uint8_t {
  kNone,          // classification
  kEveryToken,    // causal language modelling: all but the last of each sequence
  kMaskedTokens,  // a share of each sequence, at least one
  kLastToken,     // generation
};

// What is to be run.
struct Workload {
  int64_t batch_size = 0;   // examples of a step
  int64_t longest = 0;      // tokens of the longest example
  int64_t step_tokens = 0;  // most tokens a step can have
  int64_t mean_length = 1;  // tokens of an example on average: how well micro-batches fill
  int64_t sequences_per_example = 1;  // at most
  TargetRule target_rule = TargetRule::kNone;
  double masked_share = 0;

  // The most that a micro-batch of so many tokens can have.
  Dims dims(int64_t tokens) const;
};

// What the process needs besides the arena.
struct ProcessFacts {
  uint64_t overhead_bytes = 0;      // occupied before snug asks for anything: program, libraries, tokenizer
  uint64_t startup_peak_bytes = 0;  // the most the process has occupied so far (reading the tokenizer, the data)
  // Buffers of the data pipeline and of file input and output for a given capacity.
  std::function<uint64_t(const Dims& capacity)> buffer_bytes;
  uint64_t host_bytes = 0;       // where the device is not the host: what the process occupies there besides buffers
  uint64_t slack_bytes = 0;      // growth that no table counts
  // What launching so many nodes for micro-batches of this capacity takes besides; empty: nothing.
  std::function<uint64_t(const Dims& capacity, size_t nodes)> launch_bytes;
  uint64_t tolerance_bytes = 0;  // by which two starts of one program differ: the printed minimum leaves it
  uint64_t arena_granule = 1;    // the device gives memory in multiples of this
  // What the device keeps inside the arena besides tensors; empty: nothing.
  std::function<size_t(const Dims& capacity)> table_bytes;
};

// One way to run, besides the capacity of micro-batches.
struct PlanChoice {
  int recomputed_layers = 0;
  int64_t head_chunk = 0;  // target rows; 0 where there is no language model's head
  bool converts_weights = false;

  bool operator==(const PlanChoice&) const = default;
};

struct PlanRequest {
  const Model* model = nullptr;
  GraphOptions graph;  // purpose, pooling; recomputed_layers is the planner's
  Optimizer optimizer = Optimizer::kAdamW;
  Workload workload;
  ProcessFacts process;
  uint64_t budget_bytes = 0;
  Device device;
  std::optional<int> pinned_recompute;     // layers
  std::optional<int64_t> pinned_capacity;  // tokens
  std::optional<PlanChoice> pinned_choice;  // all of it: a resumed run's
};

struct Plan {
  bool fits = false;
  uint64_t budget_bytes = 0;
  uint64_t minimum_budget_bytes = 0;
  uint64_t overhead_bytes = 0, buffer_bytes = 0, arena_bytes = 0, peak_bytes = 0, host_peak_bytes = 0;
  Workload workload;
  Device device;
  DType compute = DType::kF32;
  Dims capacity;
  PlanChoice choice;
  int layers = 0;
  int64_t micro_batches = 0;  // of a step with the most tokens
  std::vector<PlanItem> items;  // at the moment of the peak; they add up to peak_bytes

  // What the executor needs. Shared, because graphs are referred to by executors.
  std::shared_ptr<const StepGraph> step;     // the request's purpose
  std::shared_ptr<const StepGraph> scoring;  // evaluation during training; null otherwise
  MemoryPlan step_memory, scoring_memory;
  ArenaLayout layout;
};

// When nothing fits, `fits` is false and the plan describes the smallest choice; minimum_budget_bytes is always set.
Plan make_plan(const PlanRequest& request);

// The plan as the library's callers see it.
PlanSummary summarize(const Plan& plan, std::string device);

}  // namespace snug
