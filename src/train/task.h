// What a model is trained for, and what follows from it for data, model and plan.
#pragma once

#include <string>

#include "data/batches.h"
#include "model/config.h"
#include "plan/planner.h"
#include "snug/snug.h"

namespace snug {

enum class Task { kClassify, kMultiLabel, kRegress, kTag, kAnswer, kClm, kMlm };

// --task, or what the model and the training file suggest. Errors are kUsage.
Task task_of(const TrainOptions& options, const ModelConfig& config);
// What a trained model is for; a bare one was trained for nothing (kInput).
Task task_of(const ModelConfig& config, const std::string& folder);

std::string_view task_name(Task task);
Head head_of(Task task);
TokenTask token_task(Task task);
TargetRule target_rule(Task task);
Labelling labelling_of(Task task);
Problem problem_of(Task task);  // where the head is a classifier
inline bool is_language(Task task) { return task == Task::kClm || task == Task::kMlm; }
// Whether the loss is a cross entropy, which label smoothing is for.
inline bool has_classes(Task task) { return task == Task::kClassify || task == Task::kTag; }

// Whether a file's name says that it holds tagged words.
bool is_tagged_file(const std::string& file);

// How texts become examples under these flags; `positions` is what the model has.
EncodingOptions encoding_options(const CommonOptions& options, Task task, int64_t positions);
// What becomes of so many texts that are too long: "a.csv: 3 texts have more than 64 tokens; ...".
std::string long_texts_text(const std::string& name, uint64_t texts,
                            const EncodingOptions& encoding);

}  // namespace snug
