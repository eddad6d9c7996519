#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/error.h"
#include "plan/gpu.h"

namespace snug {
namespace {

constexpr int64_t kHeadChunks[] = {8192, 2048, 512, 128};

// Capacities between the longest text and a whole step are multiples of this, so that small
// differences of overhead do not change the packing.
constexpr int64_t kCapacityStep = 64;
// Up to so many micro-batches every number is tried, beyond that every number that is larger by an
// eighth.
constexpr int64_t kFewMicroBatches = 16;
constexpr size_t kGraphsKept = 4;
// The device keeps eight bytes for each page of 4 KiB of the host that it may read.
constexpr uint64_t kHostBytesPerTableByte = 512;
constexpr int kSweepBudgets = 24;

// What layers recompute from the least to the most: each step adds a part to one more layer, cheap
// ones first, the first layers first, since they wait longest for their backward.
std::vector<Recomputation> recompute_ladder(const Speed& speed) {
  std::vector<Recomputation> ladder = {Recomputation(speed.shares.size() + 1)};
  const auto add = [&](Part part) {
    for (size_t i = 0; i < speed.shares.size(); ++i) {
      if (!speed.has_backward(i)) continue;
      ladder.push_back(ladder.back());
      ladder.back()[i + 1].add(part);
    }
  };
  add(Part::kNorms);
  add(Part::kActivations);
  if (speed.has_backward(0)) {
    ladder.push_back(ladder.back());
    ladder.back()[0] = Parts::all();
  }
  // Both free the same.
  const bool mlp_first = speed.recomputing({Part::kMlp}) <= speed.recomputing({Part::kAttention});
  add(mlp_first ? Part::kMlp : Part::kAttention);
  add(mlp_first ? Part::kAttention : Part::kMlp);
  add(Part::kSums);
  return ladder;
}

// The first index below `end` for which `holds`, as it does for all behind it; else `end`.
template <class Condition>
size_t first_where(size_t end, const Condition& holds) {
  size_t begin = 0;
  while (begin < end) {
    const size_t middle = (begin + end) / 2;
    holds(middle) ? end = middle : begin = middle + 1;
  }
  return end;
}

// Graphs are built when a choice is looked at, and what they need is remembered: one search serves
// many budgets.
class Search {
 public:
  explicit Search(const PlanRequest& request)
      : request_(request),
        budget_(request.budget_bytes),
        speed_(request.speed.value_or(derived_speed(request))) {
    if (request_.pinned_choice) {
      ladder_ = {request_.pinned_choice->recompute};
    } else if (!training() || request_.pinned_recompute) {
      ladder_ = {training() ? *request_.pinned_recompute : Recomputation()};
    } else if (request_.pinned_offload && request_.activations_outside) {
      ladder_ = {Recomputation(speed_.shares.size() + 1, Parts::all())};
    } else {
      ladder_ = recompute_ladder(speed_);
    }
    find_smallest();
  }

  Plan run(uint64_t budget) {
    budget_ = budget;
    std::optional<Candidate> best;
    double best_seconds = 0;
    if (fits(smallest_)) best = smallest_, best_seconds = seconds(smallest_);
    // Most promising first: what cannot win even with the least recomputation is not tried.
    std::vector<Candidate> candidates = candidates_on_lowest_rungs();
    std::ranges::stable_sort(candidates, {}, [this](const Candidate& c) { return seconds(c); });
    for (Candidate candidate : candidates) {
      if (best && seconds(candidate) >= best_seconds) break;
      // Of the rungs that would still win, the last needs least.
      const auto at = [&](size_t rung) {
        Candidate other = candidate;
        other.rung = rung;
        return other;
      };
      const size_t begin = candidate.rung, rungs = ladder_.size() - begin;
      const size_t end = first_where(
          rungs, [&](size_t n) { return best && seconds(at(begin + n)) >= best_seconds; });
      if (!fits(at(begin + end - 1))) continue;
      candidate.rung = begin + first_where(end - 1, [&](size_t n) { return fits(at(begin + n)); });
      best = candidate;
      best_seconds = seconds(candidate);
    }
    Plan plan = best ? evaluate(choice_of(*best), widened(*best).capacity)
                     : evaluate(choice_of(smallest_), smallest_.capacity);
    plan.fits = best.has_value();
    plan.minimum_budget_bytes = minimum_bytes();
    // What was compared, without the room that is left over: only so more memory is never predicted
    // to be slower.
    if (best) set_time(plan, best_seconds);
    return plan;
  }

  uint64_t minimum_bytes() { return exact_bytes(smallest_) + request_.process.tolerance_bytes; }

 private:
  // A choice by its place in the ladder.
  struct Candidate {
    size_t rung = 0;
    int64_t chunk = 0;
    bool converts = false;
    Offload offload = Offload::kNone;
    bool stows = false;
    int64_t capacity = 0;
    auto operator<=>(const Candidate&) const = default;
  };
  PlanChoice choice_of(const Candidate& c) const {
    return {ladder_[c.rung], c.chunk, c.converts, c.offload, c.stows};
  }
  double seconds(const Candidate& c) const {
    return step_seconds(request_, speed_, choice_of(c), c.capacity);
  }

  bool training() const { return request_.graph.purpose == Purpose::kTraining; }
  bool keeps_states() const { return training() && request_.graph.kept_layers > 0; }

  bool has_vocabulary_head() const {
    const Head head = request_.model->head();
    return (head == Head::kCausalLm || head == Head::kMaskedLm) &&
           request_.workload.target_rule != TargetRule::kNone &&
           request_.graph.purpose != Purpose::kGeneration;
  }

  // Largest first.
  std::vector<int64_t> chunk_choices() const {
    if (request_.pinned_choice) return {request_.pinned_choice->head_chunk};
    if (!has_vocabulary_head()) return {0};
    const int64_t most = std::max<int64_t>(1, request_.workload.dims(useful_capacity()).targets);
    std::vector<int64_t> choices = {std::min(most, kHeadChunks[0])};
    for (int64_t chunk : kHeadChunks) {
      if (chunk < choices.back()) choices.push_back(chunk);
    }
    return choices;
  }

  // Copies are given up for training alone: inference keeps nothing else. Those of weights that are
  // split are not given up.
  std::vector<bool> conversion_choices() const {
    if (request_.pinned_choice) return {request_.pinned_choice->converts_weights};
    const DType compute = request_.graph.compute;
    const bool has_copies =
        training() && compute != DType::kF32 &&
        std::ranges::any_of(request_.model->parameters(), [&](const auto& p) {
          return p.trained && p.is_factor && !p.is_vector && !p.quantized && !p.splits(compute);
        });
    return has_copies ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  bool may_round_gradients() const {
    return training() && std::ranges::any_of(request_.model->parameters(), [&](const auto& p) {
             return p.rounds_gradient(request_.graph.compute);
           });
  }

  // Least first.
  std::vector<Offload> offload_choices() const {
    if (request_.pinned_choice) return {request_.pinned_choice->offload};
    if (!training()) return {Offload::kNone};
    if (request_.pinned_offload) return {*request_.pinned_offload};
    if (request_.device.kind == DeviceKind::kCpu) return {Offload::kNone, Offload::kState};
    return {Offload::kNone, Offload::kState, Offload::kGradients};
  }

  // Whether what recomputed layers keep goes outside.
  std::vector<bool> stowing_choices() const {
    if (request_.pinned_choice) return {request_.pinned_choice->activations_outside};
    if (!training()) return {false};
    if (request_.pinned_offload) return {request_.activations_outside};
    return lowest_rung(true) < ladder_.size() ? std::vector<bool>{false, true}
                                              : std::vector<bool>{false};
  }
  // Without a layer that is recomputed whole there is nothing to stow.
  size_t lowest_rung(bool stows) const {
    if (!stows || request_.pinned_choice || request_.pinned_offload) return 0;
    const auto any_whole = [](const Recomputation& recompute) {
      return recompute.size() > 1 &&
             std::find(recompute.begin() + 1, recompute.end(), Parts::all()) != recompute.end();
    };
    return size_t(std::ranges::find_if(ladder_, any_whole) - ladder_.begin());
  }

  // How weights can be kept: in the arena with or without copies, or outside, which leaves the
  // copies alone there; and what layers keep.
  struct Keeping {
    bool converts;
    Offload offload;
    bool stows;
    bool operator==(const Keeping&) const = default;
  };
  std::vector<Keeping> keepings() const {
    std::vector<Keeping> all;
    for (const bool stows : stowing_choices()) {
      for (const Offload offload : offload_choices()) {
        if (request_.pinned_choice || offload == Offload::kNone) {
          for (const bool converts : conversion_choices()) {
            all.push_back({converts, offload, stows});
          }
        } else {
          all.push_back({false, offload, stows});
        }
      }
    }
    return all;
  }

  // The longest text alone, a whole step, and between them what divides a step evenly.
  std::vector<int64_t> capacity_choices() const {
    const int64_t low = smallest_capacity(), high = useful_capacity();
    std::vector<int64_t> choices = {high};
    for (int64_t parts = 2; parts <= high && choices.back() > low;
         parts += std::max<int64_t>(1, parts < kFewMicroBatches ? 1 : parts / 8)) {
      // Whole texts of the greatest length, where that is what there is.
      const int64_t even = (high + parts - 1) / parts;
      const int64_t texts = (even + low - 1) / low * low,
                    rounded = (even + kCapacityStep - 1) / kCapacityStep * kCapacityStep;
      choices.push_back(
          std::clamp(request_.workload.lengths_vary() ? rounded : texts, low, choices.back()));
    }
    choices.push_back(low);
    choices.erase(std::ranges::unique(choices).begin(), choices.end());
    return choices;
  }

  std::vector<Candidate> candidates_on_lowest_rungs() const {
    std::vector<Candidate> candidates;
    for (const int64_t capacity : capacity_choices()) {
      for (const int64_t chunk : chunk_choices()) {
        for (const auto& [converts, offload, stows] : keepings()) {
          candidates.push_back({lowest_rung(stows), chunk, converts, offload, stows, capacity});
        }
      }
    }
    return candidates;
  }

  // Few are kept: they would be the largest thing in a small process, and are quickly built again.
  std::shared_ptr<const StepGraph> step_graph(const PlanChoice& choice, bool only_pass) {
    const std::pair key(choice, only_pass);
    if (steps_.size() >= kGraphsKept && !steps_.contains(key)) steps_.clear();
    auto& found = steps_[key];
    if (!found) found = build(choice, request_.graph.purpose, only_pass);
    return found;
  }
  // Whatever is recomputed.
  std::shared_ptr<const StepGraph> scoring_graph(const PlanChoice& choice) {
    auto& found = scorings_[{choice.head_chunk, choice.converts_weights}];
    if (!found) found = build(choice, Purpose::kScoring);
    return found;
  }
  std::shared_ptr<const StepGraph> prefix_graph() {
    if (!prefix_) prefix_ = build({}, Purpose::kPrefix);
    return prefix_;
  }
  std::shared_ptr<const StepGraph> build(const PlanChoice& choice, Purpose purpose,
                                         bool only_pass = false) const {
    GraphOptions options = request_.graph;
    options.purpose = purpose;
    options.recompute = choice.recompute;
    options.head_chunk = choice.head_chunk;
    options.converts_weights = choice.converts_weights;
    options.gradients_outside = choice.offload == Offload::kGradients;
    options.only_pass = only_pass;
    options.activations_outside = choice.activations_outside;
    options.bf16_weights = training() && request_.optimizer == Optimizer::kAdamWBf16;
    return std::make_shared<StepGraph>(request_.model->build(options));
  }

  // On their way to a GPU.
  uint64_t pinned_states_bytes(const Dims& capacity) const {
    if (!keeps_states() || request_.device.kind == DeviceKind::kCpu) return 0;
    return kUploadSlots * kept_states(*request_.model, request_.graph).bytes(capacity);
  }

  // Everything about one choice; without placing tensors, the least that it can need.
  enum class Placing { kDone, kLeftOut };
  Plan evaluate(const PlanChoice& choice, int64_t capacity, Placing placing = Placing::kDone) {
    const auto memory_of = [&](const StepGraph& step) {
      if (placing == Placing::kDone) {
        return plan_memory(step.graph, request_.workload.dims(capacity), request_.device);
      }
      MemoryPlan bound;
      bound.bytes = live_memory(step.graph, request_.workload.dims(capacity), request_.device);
      return bound;
    };
    Plan plan;
    plan.budget_bytes = budget_;
    plan.workload = request_.workload;
    plan.capacity = request_.workload.dims(capacity);
    plan.choice = choice;
    plan.layers = request_.model->layers();
    plan.kept_layers = request_.graph.kept_layers;
    plan.micro_batches = (request_.workload.step_tokens + capacity - 1) / capacity;
    // Where gradients are in the arena the graph is the same.
    plan.step = step_graph(choice, plan.only_pass() && choice.offload == Offload::kGradients);
    plan.step_memory = memory_of(*plan.step);
    size_t transient = plan.step_memory.bytes;
    if (training()) {
      plan.scoring = scoring_graph(choice);
      plan.scoring_memory = memory_of(*plan.scoring);
      transient = std::max(transient, plan.scoring_memory.bytes);
    }
    if (keeps_states()) {
      plan.prefix = prefix_graph();
      plan.prefix_memory = memory_of(*plan.prefix);
      transient = std::max(transient, plan.prefix_memory.bytes);
    }
    std::vector<size_t> stowed_bytes;
    for (const ValueId v : plan.step->graph.stowed()) {
      stowed_bytes.push_back(plan.step->graph.value(v).desc.bytes(plan.capacity));
    }
    plan.layout = lay_out_arena(
        request_.model->parameters(),
        {.use = training() ? ArenaUse::kTraining : ArenaUse::kInference,
         .compute = request_.graph.compute,
         .converts_weights = choice.converts_weights,
         .optimizer = request_.optimizer,
         .offload = choice.offload,
         .only_pass = plan.only_pass(),
         .state_visits = request_.device.kind == DeviceKind::kCpu,
         .transient_bytes = transient,
         .table_bytes =
             request_.process.table_bytes ? request_.process.table_bytes(plan.capacity) : 0,
         .stowed_bytes = std::move(stowed_bytes)});
    plan.arena_bytes = plan.layout.bytes;
    plan.compute = request_.graph.compute;
    plan.optimizer = request_.optimizer;
    plan.device = request_.device;
    plan.overhead_bytes = request_.process.overhead_bytes;
    plan.buffer_bytes = request_.process.buffer_bytes(plan.capacity);
    plan.buffer_bytes += pinned_states_bytes(plan.capacity);
    set_time(plan, step_seconds(request_, speed_, choice, capacity));
    itemise(plan);
    return plan;
  }

  void itemise(Plan& plan) const {
    const bool cpu = request_.device.kind == DeviceKind::kCpu;
    const ArenaLayout& layout = plan.layout;
    const uint64_t weights = layout.trained.bytes + layout.halves.bytes + layout.others.bytes,
                   copies = layout.copies.bytes;
    const uint64_t taken = (plan.arena_bytes + request_.process.arena_granule - 1) /
                           request_.process.arena_granule * request_.process.arena_granule;
    plan.items = {{"weights", weights}};
    if (copies > 0) {
      plan.items.push_back({fmt::format("weights in {}", dtype_name(plan.compute)), copies});
    }
    if (training()) {
      plan.items.push_back({"gradients", layout.gradients.bytes});
      plan.items.push_back({"optimizer state", layout.states.bytes});
    }
    plan.items.push_back({training() ? "activations and workspace" : "activations",
                          taken - weights - copies - layout.gradients.bytes - layout.states.bytes});
    if (cpu) plan.items.push_back({"data and file buffers", plan.buffer_bytes});
    plan.items.push_back(
        {cpu ? "program, libraries, tokenizer" : "CUDA context, libraries, kernels",
         plan.overhead_bytes});
    if (request_.process.launch_bytes) {
      size_t nodes = 0;
      for (const auto& step : {plan.step, plan.scoring, plan.prefix}) {
        nodes += step ? step->graph.nodes().size() : 0;
      }
      plan.items.push_back({"CUDA graphs", request_.process.launch_bytes(plan.capacity, nodes,
                                                                         !layout.stowed.empty())});
    }
    const uint64_t pinned = layout.outside_bytes + pinned_states_bytes(plan.capacity);
    if (!cpu && pinned > 0) {
      plan.items.push_back({"page tables of the host's memory", pinned / kHostBytesPerTableByte});
    }
    const auto& slack = request_.process.slack_bytes;
    plan.items.push_back({cpu ? "heap and stacks" : "kernels loaded later",
                          (slack ? slack(plan.capacity) : 0) + (cpu ? heap_bytes(plan) : 0)});
    for (const PlanItem& item : plan.items) plan.peak_bytes += item.bytes;
    if (!cpu) {
      plan.host_peak_bytes = request_.process.host_bytes + plan.buffer_bytes + layout.outside_bytes;
      return;
    }
    if (request_.process.startup_peak_bytes > plan.peak_bytes) {
      plan.items.push_back(
          {"start-up beyond that", request_.process.startup_peak_bytes - plan.peak_bytes});
      plan.peak_bytes = request_.process.startup_peak_bytes;
    }
    plan.host_peak_bytes = plan.peak_bytes;
  }

  // What the run's graphs take of the heap, with the places of their values and the tables of who
  // runs them.
  static uint64_t heap_bytes(const Plan& plan) {
    // A parameter's: its place, and its entry in the header of a file while that is read or
    // written.
    constexpr uint64_t kOfNode = sizeof(Placement) + 80, kOfSlot = 40,
                       kOfParameter = sizeof(ParameterPlace) + 1024;
    uint64_t bytes = plan.layout.parameters.size() * kOfParameter;
    for (const auto& step : {plan.step, plan.scoring, plan.prefix}) {
      if (!step) continue;
      const Graph& graph = step->graph;
      bytes += graph.heap_bytes() + graph.values().size() * sizeof(Placement) +
               graph.nodes().size() * kOfNode;
      for (const Node& node : graph.nodes()) {
        bytes += (node.inputs.size() + node.outputs.size()) * kOfSlot;
      }
    }
    return bytes;
  }

  void set_time(Plan& plan, double seconds) const {
    plan.step_seconds = seconds;
    if (speed_.measured) {
      plan.tokens_per_second = double(mean_step_tokens(request_.workload)) / seconds;
    }
  }

  // What is known about a candidate's need. The bound is mostly the truth, and much cheaper.
  struct Need {
    uint64_t bound = 0, exact = 0, host = 0;
  };
  Need& need_of(const Candidate& candidate) {
    Need& need = needs_[candidate];
    if (need.bound == 0) {
      const Plan plan = evaluate(choice_of(candidate), candidate.capacity, Placing::kLeftOut);
      need.bound = plan.peak_bytes;
      need.host = plan.host_peak_bytes;
    }
    return need;
  }
  uint64_t exact_bytes(const Candidate& candidate) {
    Need& need = need_of(candidate);
    if (need.exact == 0) need.exact = evaluate(choice_of(candidate), candidate.capacity).peak_bytes;
    return need.exact;
  }
  bool fits(const Candidate& candidate) {
    return need_of(candidate).host <= host_budget() && need_of(candidate).bound <= budget_ &&
           exact_bytes(candidate) <= budget_;
  }
  // On a CPU run all memory is the budget's.
  uint64_t host_budget() const {
    return request_.device.kind == DeviceKind::kCpu ? std::numeric_limits<uint64_t>::max()
                                                    : request_.host_budget_bytes;
  }

  int64_t smallest_capacity() const {
    return request_.pinned_capacity.value_or(request_.workload.longest);
  }
  int64_t useful_capacity() const {
    return request_.pinned_capacity.value_or(
        std::max(request_.workload.longest, request_.workload.step_tokens));
  }

  // Texts of different lengths fill whatever room there is.
  Candidate widened(const Candidate& candidate) {
    if (!request_.workload.lengths_vary()) return candidate;
    Candidate wider = candidate;
    int64_t good = candidate.capacity / kCapacityStep,
            bad = (useful_capacity() + kCapacityStep - 1) / kCapacityStep;
    while (bad - good > 1) {
      wider.capacity = (good + bad) / 2 * kCapacityStep;
      (fits(wider) ? good : bad) = (good + bad) / 2;
    }
    wider.capacity = std::max(candidate.capacity, good * kCapacityStep);
    return wider;
  }

  // The least chunk and no copies never need more. Recomputing more nearly never does either, but
  // the last layers have their backward at once: what they give up is back before memory is least.
  // Gradients of a whole step may take half, which can be more than one text alone saves.
  void find_smallest() {
    const size_t last = ladder_.size() - 1, level = std::max<size_t>(1, last / kPartNames.size());
    std::vector<int64_t> capacities = {smallest_capacity()};
    if (may_round_gradients()) capacities.push_back(useful_capacity());
    bool first = true;
    for (const int64_t capacity : capacities) {
      for (size_t below = 0; below <= last && below <= 3 * level; ++below) {
        if (below % level > 1 && below % level + 1 != level) continue;
        for (const Keeping& keeping : keepings()) {
          if (last - below < lowest_rung(keeping.stows)) continue;
          const Candidate candidate{last - below,    chunk_choices().back(), keeping.converts,
                                    keeping.offload, keeping.stows,          capacity};
          if (!first && need_of(candidate).host > host_budget()) continue;
          if (first || need_of(candidate).bound < need_of(smallest_).bound) smallest_ = candidate;
          first = false;
        }
      }
    }
  }

  const PlanRequest& request_;
  uint64_t budget_;
  Speed speed_;
  std::vector<Recomputation> ladder_;
  Candidate smallest_;
  std::map<std::pair<PlanChoice, bool>, std::shared_ptr<const StepGraph>>
      steps_;  // the only pass of a step or not
  std::map<std::pair<int64_t, bool>, std::shared_ptr<const StepGraph>>
      scorings_;  // by chunk and conversion
  std::shared_ptr<const StepGraph> prefix_;
  std::map<Candidate, Need> needs_;
};

}  // namespace

Dims Workload::dims(int64_t tokens) const {
  Dims dims{.tokens = tokens,
            .sequences = std::min(batch_size * sequences_per_example, tokens),
            .longest = longest,
            .label_words = label_words};
  switch (target_rule) {
    case TargetRule::kNone:
      break;
    case TargetRule::kEveryToken:
      dims.targets = tokens;
      break;
    case TargetRule::kMaskedTokens:
      // Rounded up in each sequence.
      dims.targets =
          std::min(tokens, int64_t(std::ceil(masked_share * double(tokens))) + dims.sequences);
      break;
    case TargetRule::kLastToken:
      dims.targets = dims.sequences;
      break;
  }
  return dims;
}

Plan make_plan(const PlanRequest& request) {
  SNUG_CHECK(request.model != nullptr && request.workload.longest > 0 &&
             request.workload.batch_size > 0);
  return Search(request).run(request.budget_bytes);
}

std::vector<Plan> sweep_plans(const PlanRequest& request) {
  Search search(request);
  const Plan roomy = search.run(std::numeric_limits<uint64_t>::max());
  const uint64_t least = search.minimum_bytes(), most = std::max(least, roomy.peak_bytes);
  std::vector<uint64_t> budgets;
  // Closer together where little memory makes much difference.
  for (int i = 0; i <= kSweepBudgets; ++i) {
    const double share = double(i) / kSweepBudgets;
    budgets.push_back(least + uint64_t(share * share * double(most - least)));
  }
  if (request.budget_bytes >= least && request.budget_bytes < most) {
    budgets.push_back(request.budget_bytes);
  }
  std::ranges::sort(budgets);
  std::vector<Plan> frontier;
  for (const uint64_t budget : budgets) {
    Plan plan = search.run(budget);
    // Of those that are as fast the least budget's stays, or the one that was asked for: with more
    // room it has larger micro-batches.
    const bool asked_for = budget == request.budget_bytes && frontier.size() > 1 &&
                           plan.step_seconds == frontier.back().step_seconds;
    if (asked_for) frontier.pop_back();
    if (frontier.empty() || plan.step_seconds < frontier.back().step_seconds) {
      frontier.push_back(std::move(plan));
    }
  }
  return frontier;
}

uint64_t minimum_budget(const PlanRequest& request) { return Search(request).minimum_bytes(); }

}  // namespace snug
