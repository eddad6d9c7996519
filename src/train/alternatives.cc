#include "train/alternatives.h"

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

// Flags as the user would type them, and what they do to the options.
struct Change {
  std::string flags;
  std::function<void(TrainOptions&)> apply;
};

std::vector<Change> changes(const TrainingJob& job) {
  std::vector<Change> list = {
      {"--optim adamw_8bit", [](TrainOptions& o) { o.optim = "adamw_8bit"; }},
      {"--optim adamw_bf16", [](TrainOptions& o) { o.optim = "adamw_bf16"; }},
      {"--freeze embeddings", [](TrainOptions& o) { o.freeze.push_back("embeddings"); }},
      {"--freeze all-but-head", [](TrainOptions& o) { o.freeze.push_back("all-but-head"); }},
      {"--freeze all-but-head --quantize int8",
       [](TrainOptions& o) {
         o.freeze.push_back("all-but-head");
         o.quantize = "int8";
       }},
      {"--lora-rank 8", [](TrainOptions& o) { o.lora_rank = 8; }},
      {"--lora-rank 8 --quantize int8",
       [](TrainOptions& o) {
         o.lora_rank = 8;
         o.quantize = "int8";
       }},
      {"--precision bf16", [](TrainOptions& o) { o.precision = "bf16"; }},
      {"--precision fp16", [](TrainOptions& o) { o.precision = "fp16"; }},
  };
  for (const int64_t length : {512, 256, 128, 64, 32}) {
    if (length >= job.plan.workload.longest) continue;
    list.push_back({fmt::format("--max-length {}", length), [length](TrainOptions& o) { o.max_length = length; }});
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
    if (alternative.peak_bytes <= summary.budget_bytes) summary.would_fit_with.push_back(alternative);
  }
  if (summary.would_fit_with.empty() && !all.empty()) summary.smallest_with = all.front();
}

}  // namespace snug
