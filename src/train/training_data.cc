#include "train/training_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/process_memory.h"
#include "core/progress.h"
#include "core/threads.h"
#include "data/data_files.h"
#include "data/skipped_rows.h"
#include "train/training_job.h"

namespace snug {
namespace {

// --block-size is --max-length under the name that scripts for language models use.
CommonOptions with_block_size(const TrainOptions& options, Task task, int64_t positions) {
  CommonOptions common = options;
  if (task != Task::kClm || options.block_size == 0) return common;
  if (options.max_length != 0 && options.max_length != options.block_size) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format(
            "--max-length {} and --block-size {}: in --task clm both are the tokens of a block",
            options.max_length, options.block_size),
        "leave one of them out");
  }
  common.max_length = options.block_size;
  text_length(common, positions, "--block-size");
  return common;
}

// What a thread that reads data may take for a word: its share of what is left before the run takes
// its memory. On a GPU the budget is elsewhere.
uint64_t word_room_of(const TrainingJob& job) {
  if (job.platform->name() != "cpu") return EncodeOptions().word_room;
  const uint64_t budget = job.platform->budget(job.options.memory_bytes),
                 occupied = resident_bytes();
  const uint64_t left = budget > occupied ? budget - occupied : 0;
  return std::max(left / uint64_t(num_threads()), kUsualWordRoom);
}

DatasetOptions labelled_dataset_options(const TrainOptions& o, Task task,
                                        const ModelFolder& folder) {
  DatasetOptions result;
  result.columns = {o.text_column, o.text_pair_column, o.label_column};
  result.has_header = o.header;
  result.label_separator = o.label_separator;
  result.encoding = encoding_options(o, task, folder.config.max_length());
  result.cache_folder = cache_folder(o);
  result.threads = num_threads();
  result.skip_bad_rows = o.skip_bad_rows;
  return result;
}

void warn_of_same_contents(const TrainingJob& job) {
  const TrainOptions& o = job.options;
  if (job.validation->source_hash() == job.train->source_hash()) {
    warn(fmt::format("{} and {} have the same contents: the scores will say nothing", o.train,
                     o.validation));
  }
}

void say_long_texts(const Dataset& data, const EncodingOptions& encoding) {
  if (data.long_rows() > 0) {
    say(long_texts_text(name_of_files(data.sources()), data.long_rows(), encoding));
  }
}

void say_skipped(const Dataset& data) {
  if (data.skipped_rows() == 0) return;
  say(skipped_rows_text(name_of_files(data.sources()), data.skipped_rows()) +
      "; skipped.jsonl in the output folder says why");
}

Dataset open_files(const char* flag, const std::string& list, const TrainingJob& job,
                   const DatasetOptions& options) {
  Dataset data = Dataset::open(find_data_files(flag, list).files, *job.folder.tokenizer, options);
  say_skipped(data);
  return data;
}

// What a run trains on: without the texts that are kept for validation, at most as many as asked
// for, in stated shares.
Dataset chosen_for_training(const TrainOptions& o, Dataset data) {
  const uint64_t most = o.max_train_samples > 0 ? uint64_t(o.max_train_samples)
                                                : std::numeric_limits<uint64_t>::max();
  const std::vector<MixturePart> parts = find_data_files("--train", o.train).parts;
  if (!parts.empty()) return data.mixed(parts, most);
  return most < data.rows() ? data.first_texts(most) : std::move(data);
}

Dataset chosen_for_validation(const TrainOptions& o, Dataset data) {
  return o.max_eval_samples > 0 ? data.first_texts(uint64_t(o.max_eval_samples)) : std::move(data);
}

Dataset open_validation(const TrainingJob& job, const DatasetOptions& options) {
  const TrainOptions& o = job.options;
  if (!find_data_files("--validation", o.validation).parts.empty()) {
    fail(ErrorKind::kUsage, "--validation is \"{}\": weights are for --train", o.validation);
  }
  return chosen_for_validation(o, open_files("--validation", o.validation, job, options));
}

// "balanced", as scikit-learn has it: rows / (classes * rows of the class); or the weights
// themselves.
std::vector<float> class_weights_of(const TrainOptions& o, Task task, const Dataset& data) {
  std::vector<float> weights;
  if (o.class_weights.empty()) return weights;
  if (!has_classes(task)) {
    fail(ErrorKind::kUsage, "--class-weights is for --task classify and tag, not {}",
         task_name(task));
  }
  if (!o.teacher.empty()) {
    fail(ErrorKind::kUsage, "--class-weights and --teacher do not go together");
  }
  const size_t classes = data.labels().names.size();
  if (o.class_weights == "balanced") {
    const auto rows =
        std::accumulate(data.label_counts().begin(), data.label_counts().end(), uint64_t{0});
    for (const uint64_t count : data.label_counts()) {
      weights.push_back(float(double(rows) / double(classes * std::max<uint64_t>(1, count))));
    }
    return weights;
  }
  for (size_t at = 0; at <= o.class_weights.size();) {
    const size_t end = std::min(o.class_weights.find(',', at), o.class_weights.size());
    float weight = 0;
    const char* const last = o.class_weights.data() + end;
    const auto [parsed, error] = std::from_chars(o.class_weights.data() + at, last, weight);
    if (error != std::errc() || parsed != last || !(weight >= 0) || !std::isfinite(weight)) {
      fail(ErrorKind::kUsage, "--class-weights is \"{}\", expected balanced, or {} numbers for {}",
           o.class_weights, classes, fmt::join(data.labels().names, ", "));
    }
    weights.push_back(weight);
    at = end + 1;
  }
  if (weights.size() != classes ||
      std::ranges::all_of(weights, [](float weight) { return weight == 0; })) {
    fail(ErrorKind::kUsage, "--class-weights has {} numbers, expected {}, not all zero: for {}",
         weights.size(), classes, fmt::join(data.labels().names, ", "));
  }
  return weights;
}

void open_labelled_data(TrainingJob& job) {
  const TrainOptions& o = job.options;
  if (o.label_smoothing > 0 && !has_classes(job.task)) {
    fail(ErrorKind::kUsage, "--label-smoothing-factor is for --task classify and tag, not {}",
         task_name(job.task));
  }
  DatasetOptions data = labelled_dataset_options(o, job.task, job.folder);
  data.encoding.word_room = word_room_of(job);
  LabelSet trained = o.ignore_mismatched_sizes || job.task == Task::kRegress
                         ? LabelSet{}
                         : job.folder.trained_labels(head_of(job.task));
  if (job.teacher && trained.names.empty()) trained = job.teacher->labels;
  if (!trained.names.empty()) data.known_labels = &trained;
  Dataset all = open_files("--train", o.train, job, data);
  say_long_texts(all, data.encoding);
  const double held_out = o.validation.empty() ? o.validation_split_percentage.value_or(0) : 0;
  if (held_out > 0) {
    Dataset::Split split = all.split(held_out, o.seed);
    job.train = std::make_unique<Dataset>(chosen_for_training(o, std::move(split.kept)));
    job.validation = std::make_unique<Dataset>(chosen_for_validation(o, std::move(split.held_out)));
  } else {
    job.train = std::make_unique<Dataset>(chosen_for_training(o, std::move(all)));
  }
  if (job.task != Task::kAnswer) job.folder.config.labels = job.train->labels().names;
  if (head_of(job.task) == Head::kClassifier) job.folder.config.problem = problem_of(job.task);
  job.class_weights = class_weights_of(o, job.task, *job.train);
  if (job.teacher) check_labels(*job.teacher, job.folder.config.labels);
  if (o.validation.empty()) return;
  if (job.task != Task::kRegress && job.task != Task::kAnswer) {
    data.known_labels = &job.train->labels();
  }
  job.validation = std::make_unique<Dataset>(open_validation(job, data));
  warn_of_same_contents(job);
}

// Without a file of its own, validation takes the last rows of each file of the training data.
void open_text(TrainingJob& job) {
  const TrainOptions& o = job.options;
  DatasetOptions data = text_dataset_options(
      with_block_size(o, job.task, job.folder.config.max_length()), job.task, job.folder);
  data.encoding.word_room = word_room_of(job);
  if (data.documents) {
    data.documents->joined = o.concat;
    data.documents->attention_crosses = o.attention_across_documents;
  }
  Dataset all = open_files("--train", o.train, job, data);
  say_long_texts(all, data.encoding);
  if (job.task == Task::kMlm) {
    job.masks =
        std::make_shared<MaskTable>(*job.folder.tokenizer, o.mlm_probability, o.whole_word_mask);
  }
  if (!o.validation.empty()) {
    job.train = std::make_unique<Dataset>(chosen_for_training(o, std::move(all)));
    job.validation = std::make_unique<Dataset>(open_validation(job, data));
    warn_of_same_contents(job);
    return;
  }
  if (auto split = all.split_ends(o.validation_split_percentage.value_or(5))) {
    job.train = std::make_unique<Dataset>(chosen_for_training(o, std::move(split->kept)));
    job.validation =
        std::make_unique<Dataset>(chosen_for_validation(o, std::move(split->held_out)));
  } else {
    job.train = std::make_unique<Dataset>(chosen_for_training(o, std::move(all)));
  }
}

}  // namespace

void open_training_data(TrainingJob& job) {
  is_language(job.task) ? open_text(job) : open_labelled_data(job);
}

DatasetOptions text_dataset_options(const CommonOptions& options, Task task,
                                    const ModelFolder& folder) {
  DatasetOptions result;
  result.columns = {.text = options.text_column, .text_pair = "-"};
  result.labels = LabelNeed::kIgnored;
  result.has_header = options.header;
  result.skip_bad_rows = options.skip_bad_rows;
  result.encoding = encoding_options(options, task, folder.config.max_length());
  result.cache_folder = cache_folder(options);
  result.threads = num_threads();
  if (task == Task::kClm) result.documents = {.separator = folder.end_of_text()};
  return result;
}

size_t text_length(const CommonOptions& options, int64_t positions, std::string_view flag) {
  if (options.max_length == 0) return size_t(positions);
  if (options.max_length > positions) {
    fail(ErrorKind::kUsage, "{} {} is more than the {} positions this model has", flag,
         options.max_length, positions);
  }
  if (options.max_length < 3) {
    fail(ErrorKind::kUsage, "{} {} leaves no room for text", flag, options.max_length);
  }
  return size_t(options.max_length);
}

}  // namespace snug
