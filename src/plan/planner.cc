#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/error.h"

namespace snug {
namespace {

// A micro-batch reads every weight three times and launches every kernel whatever its size; that costs about as much time
// as this many tokens. Measured on two cores with AVX2, and on an H200.
constexpr double kTokensPerPassCpu = 24, kTokensPerPassGpu = 1600;

// A chunk of a language model's head reads the word table and reads and writes its gradient; and weights that are
// converted when used are read and written twice a pass. In tokens of their part of the model, as above.
constexpr double kTokensPerChunkCpu = 10, kTokensPerChunkGpu = 200, kTokensPerConversion = 310;
constexpr int64_t kHeadChunks[] = {8192, 2048, 512, 128};

// Capacities between the longest text and a whole step are multiples of this, so that small differences of overhead do
// not change the packing.
constexpr int64_t kCapacityStep = 64;

// Graphs for every choice, built once: placing tensors is cheap, building is not.
class Search {
 public:
  explicit Search(const PlanRequest& request) : request_(request) {}

  Plan run() {
    const Plan smallest = smallest_plan();
    std::optional<Plan> best;
    double best_cost = 0;
    // Most promising first: what cannot win even with the largest micro-batch is not tried.
    std::vector<PlanChoice> choices = promising_choices(smallest.choice);
    std::ranges::stable_sort(choices, {}, [this](const PlanChoice& c) { return relative_cost(c, useful_capacity()); });
    for (const PlanChoice& choice : choices) {
      if (best && relative_cost(choice, useful_capacity()) >= best_cost) break;
      const auto capacity = largest_capacity(choice);
      if (!capacity) continue;
      const double cost = relative_cost(choice, *capacity);
      if (best && cost >= best_cost) continue;
      best = evaluate(choice, *capacity);
      best_cost = cost;
    }
    Plan plan = best ? std::move(*best) : smallest;
    plan.fits = best.has_value();
    plan.minimum_budget_bytes = smallest.peak_bytes + request_.process.tolerance_bytes;
    return plan;
  }

 private:
  bool training() const { return request_.graph.purpose == Purpose::kTraining; }

  bool has_vocabulary_head() const {
    const Head head = request_.model->head();
    return (head == Head::kCausalLm || head == Head::kMaskedLm) && request_.workload.target_rule != TargetRule::kNone &&
           request_.graph.purpose != Purpose::kGeneration;
  }

  std::vector<int> recompute_choices() const {
    if (!training()) return {0};
    if (request_.pinned_recompute) return {*request_.pinned_recompute};
    std::vector<int> choices;
    for (int layers = 0; layers <= request_.model->layers(); ++layers) choices.push_back(layers);
    return choices;
  }

  // Largest first.
  std::vector<int64_t> chunk_choices() const {
    if (!has_vocabulary_head()) return {0};
    const int64_t most = std::max<int64_t>(1, request_.workload.dims(useful_capacity()).targets);
    std::vector<int64_t> choices = {std::min(most, kHeadChunks[0])};
    for (int64_t chunk : kHeadChunks) {
      if (chunk < choices.back()) choices.push_back(chunk);
    }
    return choices;
  }

  // Copies are given up for training alone: inference keeps nothing else.
  std::vector<bool> conversion_choices() const {
    const bool has_copies = training() && request_.graph.compute != DType::kF32;
    return has_copies ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  std::vector<PlanChoice> all_choices() const {
    if (request_.pinned_choice) return {*request_.pinned_choice};
    std::vector<PlanChoice> choices;
    for (const int layers : recompute_choices()) {
      for (const int64_t chunk : chunk_choices()) {
        for (const bool converts : conversion_choices()) choices.push_back({layers, chunk, converts});
      }
    }
    return choices;
  }

  // Without those that recompute too little to fit at all. The more is recomputed, the less is needed, nearly always: the
  // smallest choice is kept whatever this finds.
  std::vector<PlanChoice> promising_choices(const PlanChoice& smallest) {
    const std::vector<int> layers = recompute_choices();
    if (request_.pinned_choice || layers.size() == 1) return all_choices();
    std::vector<PlanChoice> choices = {smallest};
    for (const int64_t chunk : chunk_choices()) {
      for (const bool converts : conversion_choices()) {
        const auto first = std::ranges::partition_point(
            layers, [&](int count) { return !fits({count, chunk, converts}, smallest_capacity()); });
        for (auto count = first; count != layers.end(); ++count) choices.push_back({*count, chunk, converts});
      }
    }
    return choices;
  }

  struct Graphs {
    std::shared_ptr<StepGraph> step, scoring;
  };
  const Graphs& graphs(const PlanChoice& choice) {
    const auto key = std::tuple(choice.recomputed_layers, choice.head_chunk, choice.converts_weights);
    Graphs& found = graphs_[key];
    if (!found.step) {
      GraphOptions options = request_.graph;
      options.recomputed_layers = choice.recomputed_layers;
      options.head_chunk = choice.head_chunk;
      options.converts_weights = choice.converts_weights;
      found.step = std::make_shared<StepGraph>(request_.model->build(options));
      if (training()) {
        options.purpose = Purpose::kScoring;
        found.scoring = std::make_shared<StepGraph>(request_.model->build(options));
      }
    }
    return found;
  }

  // Everything about one choice.
  Plan evaluate(const PlanChoice& choice, int64_t capacity) {
    Plan plan;
    plan.budget_bytes = request_.budget_bytes;
    plan.workload = request_.workload;
    plan.capacity = request_.workload.dims(capacity);
    plan.choice = choice;
    plan.layers = request_.model->layers();
    plan.micro_batches = (request_.workload.step_tokens + capacity - 1) / capacity;
    const Graphs& built = graphs(choice);
    plan.step = built.step;
    plan.step_memory = plan_memory(plan.step->graph, plan.capacity, request_.device);
    size_t transient = plan.step_memory.bytes;
    if (built.scoring) {
      plan.scoring = built.scoring;
      plan.scoring_memory = plan_memory(plan.scoring->graph, plan.capacity, request_.device);
      transient = std::max(transient, plan.scoring_memory.bytes);
    }
    plan.layout = lay_out_arena(request_.model->parameters(),
                                {.use = training() ? ArenaUse::kTraining : ArenaUse::kInference,
                                 .compute = request_.graph.compute,
                                 .converts_weights = choice.converts_weights,
                                 .optimizer = request_.optimizer,
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
    const ArenaLayout& layout = plan.layout;
    const uint64_t weights = layout.trained.bytes + layout.others.bytes, copies = layout.copies.bytes;
    const uint64_t taken = (plan.arena_bytes + request_.process.arena_granule - 1) / request_.process.arena_granule *
                           request_.process.arena_granule;
    plan.items = {{"weights", weights}};
    if (copies > 0) plan.items.push_back({fmt::format("weights in {}", dtype_name(plan.compute)), copies});
    if (training()) {
      plan.items.push_back({"gradients", layout.gradients.bytes});
      plan.items.push_back({"optimizer state", layout.states.bytes});
    }
    plan.items.push_back({training() ? "activations and workspace" : "activations",
                          taken - weights - copies - layout.gradients.bytes - layout.states.bytes});
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

  bool fits(const PlanChoice& choice, int64_t capacity) {
    return evaluate(choice, capacity).peak_bytes <= request_.budget_bytes;
  }

  int64_t smallest_capacity() const { return request_.pinned_capacity.value_or(request_.workload.longest); }
  int64_t useful_capacity() const {
    return request_.pinned_capacity.value_or(std::max(request_.workload.longest, request_.workload.step_tokens));
  }

  // Candidates are the longest text alone, multiples of kCapacityStep, and the whole step.
  std::optional<int64_t> largest_capacity(const PlanChoice& choice) {
    const int64_t low = smallest_capacity(), high = useful_capacity();
    if (fits(choice, high)) return high;
    if (!fits(choice, low)) return std::nullopt;
    int64_t good = low / kCapacityStep, bad = (high + kCapacityStep - 1) / kCapacityStep;
    while (bad - good > 1) {
      const int64_t middle = (good + bad) / 2;
      (fits(choice, middle * kCapacityStep) ? good : bad) = middle;
    }
    return std::max(low, good * kCapacityStep);
  }

  Plan smallest_plan() {
    std::optional<Plan> smallest;
    for (const PlanChoice& choice : all_choices()) {
      // The least chunk and no copies never need more.
      if (!request_.pinned_choice && (choice.head_chunk != chunk_choices().back() || choice.converts_weights != conversion_choices().back())) continue;
      Plan plan = evaluate(choice, smallest_capacity());
      if (!smallest || plan.peak_bytes < smallest->peak_bytes) smallest = std::move(plan);
    }
    return *smallest;
  }

  // Time per token relative to an endless micro-batch without recomputation. Backward costs two forwards, so a
  // recomputed layer adds a third of its share.
  double relative_cost(const PlanChoice& choice, int64_t capacity) const {
    const bool cpu = request_.device.kind == DeviceKind::kCpu;
    double cost = 1 + double(choice.recomputed_layers) / (3.0 * std::max(1, request_.model->layers()));
    // Whole examples only: 900 tokens hold one text of 512.
    const int64_t mean = std::max<int64_t>(1, request_.workload.mean_length), filled = capacity / mean * mean;
    const int64_t tokens = std::clamp<int64_t>(filled, 1, request_.workload.step_tokens);
    if (choice.head_chunk > 0) {
      const int64_t targets = std::max<int64_t>(1, request_.workload.dims(tokens).targets);
      const double chunks = double((targets + choice.head_chunk - 1) / choice.head_chunk);
      cost += head_share() * (cpu ? kTokensPerChunkCpu : kTokensPerChunkGpu) * chunks / double(targets);
    }
    const double per_pass = (cpu ? kTokensPerPassCpu : kTokensPerPassGpu) + (choice.converts_weights ? kTokensPerConversion : 0);
    return cost * (1 + per_pass / double(tokens));
  }

  // Of the work of a token that has something to predict.
  double head_share() const {
    int64_t head = 0;
    for (const Parameter& p : request_.model->parameters()) {
      if (p.is_table && p.is_factor) head += p.size();
    }
    return double(head) / double(std::max<int64_t>(1, parameter_count(request_.model->parameters())));
  }

  const PlanRequest& request_;
  std::map<std::tuple<int, int64_t, bool>, Graphs> graphs_;
};

}  // namespace

Dims Workload::dims(int64_t tokens) const {
  Dims dims{.tokens = tokens, .sequences = std::min(batch_size * sequences_per_example, tokens), .longest = longest};
  switch (target_rule) {
    case TargetRule::kNone: break;
    case TargetRule::kEveryToken: dims.targets = tokens; break;
    case TargetRule::kMaskedTokens:
      // Rounded up in each sequence.
      dims.targets = std::min(tokens, int64_t(std::ceil(masked_share * double(tokens))) + dims.sequences);
      break;
    case TargetRule::kLastToken: dims.targets = dims.sequences; break;
  }
  return dims;
}

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
  const int recomputed = plan.choice.recomputed_layers;
  summary.recompute = recomputed == 0             ? "none"
                      : recomputed == plan.layers ? "all layers"
                                                  : fmt::format("{} of {} layers", recomputed, plan.layers);
  summary.head_chunk_tokens = std::min(plan.choice.head_chunk, plan.capacity.targets);
  summary.converts_weights = plan.choice.converts_weights;
  return summary;
}

}  // namespace snug
