#include "plan/plan_summary.h"

#include <algorithm>

namespace snug {

std::vector<SweepPoint> summarize(const std::vector<Plan>& sweep, uint64_t budget_bytes) {
  std::vector<SweepPoint> points;
  for (const Plan& plan : sweep) {
    points.push_back({.budget_bytes = plan.budget_bytes,
                      .peak_bytes = plan.peak_bytes,
                      .micro_batch_tokens = plan.capacity.tokens,
                      .micro_batches = plan.micro_batches,
                      .head_chunk_tokens = std::min(plan.choice.head_chunk, plan.capacity.targets),
                      .converts_weights = plan.choice.converts_weights,
                      .offload = offload_text(plan.choice),
                      .recompute = describe(plan.choice.recompute, plan.layers),
                      .relative_time = plan.step_seconds / sweep.back().step_seconds,
                      .tokens_per_second = plan.tokens_per_second});
  }
  // More memory would not have made it faster than the last that it holds.
  const auto beyond = std::ranges::find_if(
      points, [&](const SweepPoint& p) { return p.budget_bytes > budget_bytes; });
  if (beyond != points.begin()) std::prev(beyond)->chosen = true;
  return points;
}

PlanSummary summarize(const Plan& plan, std::string device) {
  PlanSummary summary;
  summary.fits = plan.fits;
  summary.device = std::move(device);
  summary.precision = dtype_name(plan.compute);
  summary.optimizer = optimizer_name(plan.optimizer);
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
  summary.recompute = describe(plan.choice.recompute, plan.layers);
  summary.head_chunk_tokens = std::min(plan.choice.head_chunk, plan.capacity.targets);
  summary.converts_weights = plan.choice.converts_weights;
  summary.offload = offload_text(plan.choice);
  summary.outside_bytes = plan.layout.outside_bytes;
  summary.kept_layers = plan.kept_layers;
  summary.predicted_tokens_per_second = plan.tokens_per_second;
  return summary;
}

}  // namespace snug
