// What a refusal names: techniques that change results, with what each would need. Nothing here is
// ever switched on by itself.
#pragma once

#include "train/training_job.h"

namespace snug {

// Those that would make the job fit its budget, least need first; where there is none, the one that
// needs least.
void add_alternatives(const TrainingJob& job, PlanSummary& summary);

}  // namespace snug
