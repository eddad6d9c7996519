#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

// A micro-batch reads every weight three times and launches every kernel whatever its size; that costs about as much time
// as this many tokens. Measured on two cores with AVX2, and on an H200.
constexpr double kTokensPerPassCpu = 24, kTokensPerPassGpu = 1600;

// Capacities between the longest text and a whole step are multiples of this, so that small differences of overhead do
// not change the packing.
constexpr int64_t kCapacityStep = 64;

// Graphs for every number of recomputed layers, built once: placing tensors is cheap, building is not.
class Search {
 public:
  explicit Search(const PlanRequest& request) : request_(request) {
    if (training()) {
      GraphOptions scoring = request.graph;
      scoring.purpose = Purpose::kScoring;
      scoring_ = std::make_shared<StepGraph>(request.model->build(scoring));
    }
  }

  Plan run() {
    const Plan smallest = smallest_plan();
    std::optional<Plan> best;
    double best_cost = 0;
    for (int layers : recompute_choices()) {
      const auto capacity = largest_capacity(layers);
      if (!capacity) continue;
      const double cost = relative_cost(layers, *capacity);
      if (best && cost >= best_cost) continue;
      best = evaluate(layers, *capacity);
      best_cost = cost;
    }
    Plan plan = best ? std::move(*best) : smallest;
    plan.fits = best.has_value();
    plan.minimum_budget_bytes = smallest.peak_bytes + request_.process.tolerance_bytes;
    return plan;
  }

 private:
  bool training() const { return request_.graph.purpose == Purpose::kTraining; }

  std::vector<int> recompute_choices() const {
    if (!training()) return {0};
    if (request_.pinned_recompute) return {*request_.pinned_recompute};
    std::vector<int> choices;
    for (int layers = 0; layers <= request_.model->layers(); ++layers) choices.push_back(layers);
    return choices;
  }

  const std::shared_ptr<StepGraph>& graph(int recomputed_layers) {
    if (graphs_.empty()) graphs_.resize(size_t(request_.model->layers()) + 1);
    auto& slot = graphs_[size_t(recomputed_layers)];
    if (!slot) {
      GraphOptions options = request_.graph;
      options.recomputed_layers = recomputed_layers;
      slot = std::make_shared<StepGraph>(request_.model->build(options));
    }
    return slot;
  }

  Dims dims(int64_t capacity) const {
    return {.tokens = capacity,
            .sequences = std::min(request_.workload.batch_size, capacity),
            .longest = request_.workload.longest};
  }

  // Everything about one choice.
  Plan evaluate(int recomputed_layers, int64_t capacity) {
    Plan plan;
    plan.budget_bytes = request_.budget_bytes;
    plan.workload = request_.workload;
    plan.capacity = dims(capacity);
    plan.recomputed_layers = recomputed_layers;
    plan.layers = request_.model->layers();
    plan.micro_batches = (request_.workload.step_tokens + capacity - 1) / capacity;
    plan.step = graph(recomputed_layers);
    plan.step_memory = plan_memory(plan.step->graph, plan.capacity, request_.device);
    size_t transient = plan.step_memory.bytes;
    if (scoring_) {
      plan.scoring = scoring_;
      plan.scoring_memory = plan_memory(scoring_->graph, plan.capacity, request_.device);
      transient = std::max(transient, plan.scoring_memory.bytes);
    }
    plan.layout = lay_out_arena(request_.model->parameters(),
                                {.use = training() ? ArenaUse::kTraining : ArenaUse::kInference,
                                 .compute = request_.graph.compute,
                                 .transient_bytes = transient,
                                 .table_bytes = request_.process.table_bytes ? request_.process.table_bytes(plan.capacity) : 0});
    plan.arena_bytes = plan.layout.bytes;
    plan.compute = request_.graph.compute;
    plan.device = request_.device;
    plan.overhead_bytes = request_.process.overhead_bytes;
    plan.buffer_bytes = request_.process.buffer_bytes(plan.capacity);
    itemise(plan);
    return plan;
  }

  void itemise(Plan& plan) const {
    const bool cpu = request_.device.kind == DeviceKind::kCpu;
    const uint64_t weights = plan.layout.parameter_bytes, copies = plan.layout.copy_bytes;
    const uint64_t taken = (plan.arena_bytes + request_.process.arena_granule - 1) / request_.process.arena_granule *
                           request_.process.arena_granule;
    plan.items = {{"weights", weights}};
    if (copies > 0) plan.items.push_back({fmt::format("weights in {}", dtype_name(plan.compute)), copies});
    if (training()) {
      plan.items.push_back({"gradients", weights});
      plan.items.push_back({"optimizer state", 2 * weights});
    }
    plan.items.push_back({training() ? "activations and workspace" : "activations",
                          taken - (training() ? 4 : 1) * weights - copies});
    if (cpu) plan.items.push_back({"data and file buffers", plan.buffer_bytes});
    plan.items.push_back({cpu ? "program, libraries, tokenizer" : "CUDA context, libraries, kernels", plan.overhead_bytes});
    if (request_.process.launch_bytes) {
      const size_t nodes = plan.step->graph.nodes().size() + (plan.scoring ? plan.scoring->graph.nodes().size() : 0);
      plan.items.push_back({"CUDA graphs", request_.process.launch_bytes(plan.capacity, nodes)});
    }
    plan.items.push_back({cpu ? "heap and stacks" : "kernels loaded later", request_.process.slack_bytes});
    for (const PlanItem& item : plan.items) plan.peak_bytes += item.bytes;
    if (!cpu) {
      plan.host_peak_bytes = request_.process.host_bytes + plan.buffer_bytes;
      return;
    }
    if (request_.process.startup_peak_bytes > plan.peak_bytes) {
      plan.items.push_back({"start-up beyond that", request_.process.startup_peak_bytes - plan.peak_bytes});
      plan.peak_bytes = request_.process.startup_peak_bytes;
    }
    plan.host_peak_bytes = plan.peak_bytes;
  }

  bool fits(int recomputed_layers, int64_t capacity) {
    return evaluate(recomputed_layers, capacity).peak_bytes <= request_.budget_bytes;
  }

  int64_t smallest_capacity() const { return request_.pinned_capacity.value_or(request_.workload.longest); }
  int64_t useful_capacity() const {
    return request_.pinned_capacity.value_or(std::max(request_.workload.longest, request_.workload.step_tokens));
  }

  // Candidates are the longest text alone, multiples of kCapacityStep, and the whole step.
  std::optional<int64_t> largest_capacity(int recomputed_layers) {
    const int64_t low = smallest_capacity(), high = useful_capacity();
    if (fits(recomputed_layers, high)) return high;
    if (!fits(recomputed_layers, low)) return std::nullopt;
    int64_t good = low / kCapacityStep, bad = (high + kCapacityStep - 1) / kCapacityStep;
    while (bad - good > 1) {
      const int64_t middle = (good + bad) / 2;
      (fits(recomputed_layers, middle * kCapacityStep) ? good : bad) = middle;
    }
    return std::max(low, good * kCapacityStep);
  }

  Plan smallest_plan() {
    std::optional<Plan> smallest;
    for (int layers : recompute_choices()) {
      Plan plan = evaluate(layers, smallest_capacity());
      if (!smallest || plan.peak_bytes < smallest->peak_bytes) smallest = std::move(plan);
    }
    return *smallest;
  }

  // Time per token relative to an endless micro-batch without recomputation. Backward costs two forwards, so a
  // recomputed layer adds a third of its share.
  double relative_cost(int recomputed_layers, int64_t capacity) const {
    const double forward_again = double(recomputed_layers) / (3.0 * std::max(1, request_.model->layers()));
    const double per_pass = request_.device.kind == DeviceKind::kCpu ? kTokensPerPassCpu : kTokensPerPassGpu;
    // Whole examples only: 900 tokens hold one text of 512.
    const int64_t mean = std::max<int64_t>(1, request_.workload.mean_length), filled = capacity / mean * mean;
    const double tokens = double(std::clamp<int64_t>(filled, 1, request_.workload.step_tokens));
    return (1 + forward_again) * (1 + per_pass / tokens);
  }

  const PlanRequest& request_;
  std::shared_ptr<StepGraph> scoring_;
  std::vector<std::shared_ptr<StepGraph>> graphs_;
};

}  // namespace

Plan make_plan(const PlanRequest& request) {
  SNUG_CHECK(request.model != nullptr && request.workload.longest > 0 && request.workload.batch_size > 0);
  return Search(request).run();
}

PlanSummary summarize(const Plan& plan, std::string device) {
  PlanSummary summary;
  summary.fits = plan.fits;
  summary.device = std::move(device);
  summary.precision = dtype_name(plan.compute);
  summary.budget_bytes = plan.budget_bytes;
  summary.peak_bytes = plan.peak_bytes;
  summary.host_peak_bytes = plan.host_peak_bytes;
  summary.overhead_bytes = plan.overhead_bytes;
  summary.arena_bytes = plan.arena_bytes;
  summary.minimum_budget_bytes = plan.minimum_budget_bytes;
  summary.items = plan.items;
  summary.batch_size = plan.workload.batch_size;
  summary.micro_batch_tokens = plan.capacity.tokens;
  summary.micro_batches = plan.micro_batches;
  summary.max_length = plan.workload.longest;
  summary.recompute = plan.recomputed_layers == 0 ? "none"
                      : plan.recomputed_layers == plan.layers
                          ? "all layers"
                          : fmt::format("{} of {} layers", plan.recomputed_layers, plan.layers);
  return summary;
}

}  // namespace snug
