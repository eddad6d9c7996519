// Requests for plans in tests.
#pragma once

#include "core/threads.h"
#include "plan/planner.h"

namespace snug {

// Of a model's step on the CPU, with nothing beside it and all the memory it wants.
inline PlanRequest test_request(const Model& model, const Workload& workload,
                                const LossOptions& loss = {}) {
  PlanRequest request;
  request.model = &model;
  request.graph.loss = loss;
  request.workload = workload;
  request.workload.label_words = label_words(model.config(), model.head(), loss);
  const bool has_targets = model.head() == Head::kCausalLm || model.head() == Head::kMaskedLm ||
                           model.head() == Head::kTagger;
  if (has_targets) request.workload.target_rule = TargetRule::kEveryToken;
  request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
  request.budget_bytes = uint64_t{1} << 40;
  request.device = {.threads = num_threads()};
  return request;
}

}  // namespace snug
