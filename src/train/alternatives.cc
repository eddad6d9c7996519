#include "train/alternatives.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

// Flags as the user would type them, and what they do to the options.
struct Change {
  std::string flags;
  std::function<void(TrainOptions&)> apply;
};

// To train less, and to keep what is not trained in int8. Adapters that were asked for stay what
// they are.
void add_parts(std::vector<Change>& list, const TrainOptions& given) {
  const auto to_int8 = [](TrainOptions& o) { o.quantize = "int8"; };
  const auto add = [&](const std::string& flags, const std::function<void(TrainOptions&)>& apply) {
    list.push_back({flags, apply});
    if (!given.quantize.empty()) return;
    list.push_back(
        {flags + " --quantize int8", [apply, to_int8](TrainOptions& o) { apply(o), to_int8(o); }});
  };
  const bool freezes = given.lora_rank > 0 || !given.freeze.empty();
  if (freezes && given.quantize.empty()) list.push_back({"--quantize int8", to_int8});
  if (given.lora_rank > 0) return;
  const auto with = [&](const char* entry) {
    std::vector<std::string> entries = given.freeze;
    entries.emplace_back(entry);
    return entries;
  };
  const auto frozen = with("embeddings"), all_frozen = with("all-but-head");
  list.push_back({fmt::format("--freeze {}", fmt::join(frozen, ",")),
                  [frozen](TrainOptions& o) { o.freeze = frozen; }});
  add(fmt::format("--freeze {}", fmt::join(all_frozen, ",")),
      [all_frozen](TrainOptions& o) { o.freeze = all_frozen; });
  add("--lora-rank 8", [](TrainOptions& o) { o.lora_rank = 8; });
}

std::vector<Change> changes(const TrainingJob& job) {
  std::vector<Change> list = {
      {"--optim adamw_8bit", [](TrainOptions& o) { o.optim = "adamw_8bit"; }},
      {"--optim adamw_bf16", [](TrainOptions& o) { o.optim = "adamw_bf16"; }},
  };
  add_parts(list, job.options);
  list.push_back({"--precision bf16", [](TrainOptions& o) { o.precision = "bf16"; }});
  list.push_back({"--precision fp16", [](TrainOptions& o) { o.precision = "fp16"; }});
  // The flag that goes with those given.
  const bool by_blocks = job.task == Task::kClm && job.options.max_length == 0;
  const char* const length_flag = by_blocks ? "--block-size" : "--max-length";
  for (const int64_t length : {512, 256, 128, 64, 32}) {
    if (length >= job.plan.workload.longest) continue;
    list.push_back({fmt::format("{} {}", length_flag, length),
                    [length](TrainOptions& o) { o.max_length = length; }});
  }
  return list;
}

// The least budget under a change; empty where this device or this model cannot do it.
std::optional<uint64_t> least_with(const TrainingJob& job, const Change& change) {
  TrainOptions options = job.options;
  change.apply(options);
  try {
    const auto model = build_model(job, options);
    return minimum_budget(plan_request(job, options, *model));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

void add_alternatives(const TrainingJob& job, PlanSummary& summary) {
  std::vector<Alternative> all;
  for (const Change& change : changes(job)) {
    const auto least = least_with(job, change);
    if (!least || *least >= summary.minimum_budget_bytes) continue;
    all.push_back({change.flags, summary.minimum_budget_bytes - *least, *least});
  }
  std::ranges::stable_sort(all, {}, &Alternative::peak_bytes);
  for (const Alternative& alternative : all) {
    if (alternative.peak_bytes <= summary.budget_bytes) {
      summary.would_fit_with.push_back(alternative);
    }
  }
  if (summary.would_fit_with.empty() && !all.empty()) summary.smallest_with = all.front();
}

}  // namespace snug
