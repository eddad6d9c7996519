// Whether a run can keep what its frozen layers give (--keep-frozen), and how much that is.
#pragma once

#include <string>

#include "plan/planner.h"
#include "train/training_job.h"

namespace snug {

struct Keeping {
  int layers = 0;  // 0: it cannot, or is not to
  KeptStates::Size size{};
  bool drops_less = false;  // the layers have dropout, which is left out
  std::string why_not{};    // where something can be done about it
};

// What is demanded and cannot be is an error: kUsage, or kStorage where the disk has no room.
Keeping find_keeping(const TrainingJob& job, const PlanRequest& request);

}  // namespace snug
