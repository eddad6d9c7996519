#include "train/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "data/data_files.h"
#include "train/training_data.h"

namespace snug {
namespace {

struct TaskFacts {
  Task task;
  std::string_view name;
  Head head;
  TokenTask tokens;
  TargetRule targets;
  Labelling labelling;
  Problem problem;
};
constexpr std::array kTasks = {
    TaskFacts{Task::kClassify, "classify", Head::kClassifier, TokenTask::kNone, TargetRule::kNone,
              Labelling::kClass, Problem::kOneLabel},
    TaskFacts{Task::kMultiLabel, "multi-label", Head::kClassifier, TokenTask::kNone,
              TargetRule::kNone, Labelling::kClasses, Problem::kManyLabels},
    TaskFacts{Task::kRegress, "regress", Head::kClassifier, TokenTask::kNone, TargetRule::kNone,
              Labelling::kNumber, Problem::kNumbers},
    TaskFacts{Task::kTag, "tag", Head::kTagger, TokenTask::kTag, TargetRule::kEveryToken,
              Labelling::kTags, Problem::kOneLabel},
    TaskFacts{Task::kAnswer, "qa", Head::kSpans, TokenTask::kNone, TargetRule::kNone,
              Labelling::kAnswer, Problem::kOneLabel},
    TaskFacts{Task::kClm, "clm", Head::kCausalLm, TokenTask::kNextWord, TargetRule::kEveryToken,
              Labelling::kClass, Problem::kOneLabel},
    TaskFacts{Task::kMlm, "mlm", Head::kMaskedLm, TokenTask::kMaskedWord, TargetRule::kMaskedTokens,
              Labelling::kClass, Problem::kOneLabel}};

const TaskFacts& facts(Task task) { return kTasks[size_t(task)]; }

bool ends_with_any(std::string file, std::initializer_list<std::string_view> extensions) {
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (file.ends_with(packed)) file.resize(file.size() - packed.size());
  }
  return std::ranges::any_of(extensions,
                             [&](std::string_view extension) { return file.ends_with(extension); });
}

std::optional<Task> task_of_head(const ModelConfig& config) {
  const Head head = head_of(config);
  for (const TaskFacts& known : kTasks) {
    if (known.head == head &&
        (head != Head::kClassifier || known.problem == config.problem_type())) {
      return known.task;
    }
  }
  return std::nullopt;
}

}  // namespace

bool is_tagged_file(const std::string& file) {
  return ends_with_any(file, {".conll", ".bio", ".iob"});
}

Task task_of(const TrainOptions& options, const ModelConfig& config) {
  if (!options.task.empty()) {
    const auto known = std::ranges::find(kTasks, options.task, &TaskFacts::name);
    if (known != kTasks.end()) return known->task;
    std::vector<std::string_view> names;
    for (const TaskFacts& task : kTasks) names.push_back(task.name);
    fail(ErrorKind::kUsage, "--task is \"{}\", expected {}", options.task, fmt::join(names, ", "));
  }
  const std::string first = find_data_files("--train", options.train).files[0].string();
  if (is_tagged_file(first)) return Task::kTag;
  if (config.family == Family::kGpt2) return Task::kClm;
  if (ends_with_any(first, {".txt"})) return Task::kMlm;
  // A model that fills in words is what most tasks begin with.
  const std::optional<Task> trained = task_of_head(config);
  return trained && !is_language(*trained) ? *trained : Task::kClassify;
}

Task task_of(const ModelConfig& config, const std::string& folder) {
  if (const std::optional<Task> task = task_of_head(config)) return *task;
  throw Error(ErrorKind::kInput,
              fmt::format("{}: has not been trained for a task (config.json names {})", folder,
                          fmt::join(config.architectures, ", ")),
              "snug train does it; snug embed works without");
}

std::string_view task_name(Task task) { return facts(task).name; }
Head head_of(Task task) { return facts(task).head; }
TokenTask token_task(Task task) { return facts(task).tokens; }
TargetRule target_rule(Task task) { return facts(task).targets; }
Labelling labelling_of(Task task) { return facts(task).labelling; }
Problem problem_of(Task task) { return facts(task).problem; }

EncodingOptions encoding_options(const CommonOptions& options, Task task, int64_t positions) {
  constexpr std::array<std::string_view, 4> kLongTexts = {"head", "tail", "middle", "windows"};
  EncodingOptions result{.labelling = labelling_of(task),
                         .max_length = text_length(options, positions)};
  if (task == Task::kTag || task == Task::kAnswer) {
    if (!options.long_texts.empty() && options.long_texts != "windows") {
      fail(ErrorKind::kUsage, "--long-texts {}: --task {} reads long texts in windows",
           options.long_texts, task_name(task));
    }
    result.long_texts = LongTexts::kWindows;
  } else if (task == Task::kClm && (!options.long_texts.empty() || options.stride)) {
    fail(
        ErrorKind::kUsage,
        "--long-texts and --stride: --task clm reads all of a text, block by block (--block-size)");
  } else if (!options.long_texts.empty()) {
    const auto known = std::ranges::find(kLongTexts, options.long_texts);
    if (known == kLongTexts.end()) {
      fail(ErrorKind::kUsage, "--long-texts is \"{}\", expected {}", options.long_texts,
           fmt::join(kLongTexts, ", "));
    }
    result.long_texts = LongTexts(known - kLongTexts.begin());
  }
  if (options.stride && result.long_texts != LongTexts::kWindows) {
    throw Error(ErrorKind::kUsage, "--stride is for windows",
                "--long-texts windows reads long texts in them");
  }
  // A third of the texts' room, as scripts for question answering have it: 128 of 384.
  result.stride = options.stride ? size_t(*options.stride) : result.max_length / 3;
  if (result.long_texts == LongTexts::kWindows && result.stride + 4 > result.max_length) {
    fail(ErrorKind::kUsage, "--stride {} leaves windows of {} tokens nothing new", result.stride,
         result.max_length);
  }
  return result;
}

std::string long_texts_text(const std::string& name, uint64_t texts,
                            const EncodingOptions& encoding) {
  return fmt::format("{}: {} more than {} tokens; {}", name,
                     texts == 1 ? "1 text has" : fmt::format("{} texts have", texts),
                     encoding.max_length,
                     encoding.long_texts == LongTexts::kWindows
                         ? fmt::format("windows that share {} tokens are read", encoding.stride)
                         : "the rest is left out (--long-texts)");
}

}  // namespace snug
