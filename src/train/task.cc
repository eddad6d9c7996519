#include "train/task.h"

#include <array>

#include "core/error.h"

namespace snug {
namespace {

struct TaskFacts {
  Task task;
  const char* name;
  Head head;
  LanguageTask language;
  TargetRule targets;
};
constexpr std::array kTasks = {
    TaskFacts{Task::kClassify, "classify", Head::kClassifier, LanguageTask::kNone, TargetRule::kNone},
    TaskFacts{Task::kClm, "clm", Head::kCausalLm, LanguageTask::kCausal, TargetRule::kEveryToken},
    TaskFacts{Task::kMlm, "mlm", Head::kMaskedLm, LanguageTask::kMasked, TargetRule::kMaskedTokens}};

const TaskFacts& facts(Task task) { return kTasks[size_t(task)]; }

bool is_plain_text(const std::string& file) {
  return file.ends_with(".txt") || file.ends_with(".txt.gz") || file.ends_with(".txt.zst");
}

}  // namespace

Task task_of(const TrainOptions& options, const ModelConfig& config) {
  for (const TaskFacts& known : kTasks) {
    if (options.task == known.name) return known.task;
  }
  if (!options.task.empty()) {
    fail(ErrorKind::kUsage, "--task is \"{}\", expected classify, clm or mlm", options.task);
  }
  if (config.family == Family::kGpt2) return Task::kClm;
  return is_plain_text(options.train) ? Task::kMlm : Task::kClassify;
}

std::string_view task_name(Task task) { return facts(task).name; }
Head head_of(Task task) { return facts(task).head; }
LanguageTask language_task(Task task) { return facts(task).language; }
TargetRule target_rule(Task task) { return facts(task).targets; }

}  // namespace snug
