// What a model is trained for, and what follows from it for data, model and plan.
#pragma once

#include <string>

#include "data/batches.h"
#include "model/config.h"
#include "plan/planner.h"
#include "snug/snug.h"

namespace snug {

enum class Task { kClassify, kClm, kMlm };

// --task, or what the model and the training file suggest. Errors are kUsage.
Task task_of(const TrainOptions& options, const ModelConfig& config);

std::string_view task_name(Task task);
Head head_of(Task task);
LanguageTask language_task(Task task);
TargetRule target_rule(Task task);
inline bool is_language(Task task) { return task != Task::kClassify; }

}  // namespace snug
