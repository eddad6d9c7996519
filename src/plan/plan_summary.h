// Plans as the library's callers see them: figures and words, no graphs.
#pragma once

#include <string>
#include <vector>

#include "plan/planner.h"
#include "snug/snug.h"

namespace snug {

PlanSummary summarize(const Plan& plan, std::string device);
// Of the points the budget's own plan is marked.
std::vector<SweepPoint> summarize(const std::vector<Plan>& sweep, uint64_t budget_bytes);

}  // namespace snug
