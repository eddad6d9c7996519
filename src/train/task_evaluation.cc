#include "train/task_evaluation.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/progress.h"
#include "metrics/answers.h"
#include "metrics/classification.h"
#include "metrics/entities.h"
#include "metrics/multi_label.h"
#include "metrics/probabilities.h"
#include "metrics/regression.h"
#include "train/answers.h"

namespace snug {
namespace {

constexpr size_t kLongestAnswer = 30;  // tokens, as the reference scripts have it

class ClassEvaluation final : public TaskEvaluation {
 public:
  ClassEvaluation(const ModelConfig& config, const std::filesystem::path& scratch)
      : metrics_(config.labels, scratch) {}
  void add(const OwnedRow& row, std::span<const ScoredExample> windows) override {
    mean_scores(windows, scores_);
    softmax(scores_, probabilities_);
    metrics_.add(row.labels.labels[0], argmax(scores_), probabilities_);
  }
  Metrics& metrics() override { return metrics_; }

 private:
  ClassificationMetrics metrics_;
  std::vector<float> scores_;
  std::vector<double> probabilities_;
};

class LabelsEvaluation final : public TaskEvaluation {
 public:
  LabelsEvaluation(const ModelConfig& config, const std::filesystem::path& scratch)
      : metrics_(config.labels, scratch), expected_(config.labels.size()) {}
  void add(const OwnedRow& row, std::span<const ScoredExample> windows) override {
    mean_scores(windows, scores_);
    probabilities_.clear();
    for (const float score : scores_) probabilities_.push_back(sigmoid(score));
    std::ranges::fill(expected_, 0);
    for (const int32_t label : row.labels.labels) expected_[size_t(label)] = 1;
    metrics_.add(expected_, probabilities_);
  }
  Metrics& metrics() override { return metrics_; }

 private:
  MultiLabelMetrics metrics_;
  std::vector<float> scores_;
  std::vector<double> probabilities_;
  std::vector<uint8_t> expected_;
};

class NumberEvaluation final : public TaskEvaluation {
 public:
  explicit NumberEvaluation(const std::filesystem::path& scratch) : metrics_(scratch) {}
  void add(const OwnedRow& row, std::span<const ScoredExample> windows) override {
    mean_scores(windows, scores_);
    metrics_.add(std::bit_cast<float>(row.labels.labels[0]), scores_[0]);
  }
  Metrics& metrics() override { return metrics_; }

 private:
  RegressionMetrics metrics_;
  std::vector<float> scores_;
};

class TagEvaluation final : public TaskEvaluation {
 public:
  explicit TagEvaluation(const ModelConfig& config)
      : labels_(config.labels.size()), metrics_(config.labels, scheme_of(config.labels)) {}
  void add(const OwnedRow& row, std::span<const ScoredExample> windows) override {
    best_tags(row, windows, labels_, tags_);
    expected_.clear();
    predicted_.clear();
    for (size_t word = 0; word < tags_.size(); ++word) {
      const int32_t expected = row.labels.words[word].tag;
      if (tags_[word].tag < 0 || expected < 0) {
        continue;  // it has no token of its own, or counts for nothing
      }
      expected_.push_back(expected);
      predicted_.push_back(tags_[word].tag);
    }
    metrics_.add(expected_, predicted_);
  }
  Metrics& metrics() override { return metrics_; }

 private:
  size_t labels_;
  EntityMetrics metrics_;
  std::vector<BestTag> tags_;
  std::vector<int32_t> expected_, predicted_;
};

// Where every question has an answer it is SQuAD 1.1, which counts otherwise than 2.0.
class AnswerEvaluation final : public TaskEvaluation {
 public:
  explicit AnswerEvaluation(const std::filesystem::path& scratch)
      : answered_(SquadVersion::k1, scratch), all_(SquadVersion::k2, scratch) {}
  void add(const OwnedRow& row, std::span<const ScoredExample> windows) override {
    const FoundAnswers found = find_answers(row, windows, 1, kLongestAnswer);
    const std::string best = found.best.empty() ? "" : found.best[0].text;
    if (!row.answers.empty()) answered_.add(row.answers, best);
    all_.add(row.answers, best, found.no_answer_score);
  }
  Metrics& metrics() override { return answered_.examples() == all_.examples() ? answered_ : all_; }
  std::vector<Metrics*> possible_metrics() override { return {&answered_, &all_}; }

 private:
  AnswerMetrics answered_, all_;
};

}  // namespace

void mean_scores(std::span<const ScoredExample> windows, std::vector<float>& out) {
  out.assign(windows[0].result.begin(), windows[0].result.end());
  if (windows.size() == 1) return;
  for (size_t c = 0; c < out.size(); ++c) {
    double sum = 0;
    for (const ScoredExample& window : windows) sum += window.result[c];
    out[c] = float(sum / double(windows.size()));
  }
}

void best_tags(const OwnedRow& row, std::span<const ScoredExample> windows, size_t labels,
               std::vector<BestTag>& out) {
  out.assign(row.labels.words.size(), {});
  std::vector<double> probabilities;
  for (const ScoredExample& window : windows) {
    std::span<const float> scores = window.result;
    for (const int32_t word : window.example.words) {
      if (word < 0) continue;
      const int32_t best = argmax(scores.first(labels));
      softmax(scores.first(labels), probabilities);
      out[size_t(word)] = {best, probabilities[size_t(best)]};
      scores = scores.subspan(labels);
    }
  }
}

namespace {

std::unique_ptr<TaskEvaluation> make_evaluation(Task task, const ModelConfig& config,
                                                const std::filesystem::path& scratch) {
  switch (task) {
    case Task::kClassify:
      return std::make_unique<ClassEvaluation>(config, scratch);
    case Task::kMultiLabel:
      return std::make_unique<LabelsEvaluation>(config, scratch);
    case Task::kRegress:
      return std::make_unique<NumberEvaluation>(scratch);
    case Task::kTag:
      return std::make_unique<TagEvaluation>(config);
    case Task::kAnswer:
      return std::make_unique<AnswerEvaluation>(scratch);
    case Task::kClm:
    case Task::kMlm:
      break;
  }
  fail(ErrorKind::kUsage, "{} has no texts to evaluate one by one", task_name(task));
}

uint64_t most_metrics_bytes(Task task, const ModelConfig& config) {
  switch (task) {
    case Task::kClassify:
      return ClassificationMetrics::bytes(config.labels.size());
    case Task::kMultiLabel:
      return MultiLabelMetrics::bytes(config.labels.size());
    case Task::kRegress:
      return RegressionMetrics::bytes();
    case Task::kAnswer:
      return 2 * AnswerMetrics::bytes();
    case Task::kTag:
    case Task::kClm:
    case Task::kMlm:
      return 0;
  }
  return 0;
}

// Scores are kept to be sorted until they fill their buffers: of few rows there are few.
uint64_t metrics_bytes(Task task, const ModelConfig& config, uint64_t rows) {
  constexpr uint64_t kScoreBytes = 2 * 48;  // of the largest record; lists grow by doubling
  const uint64_t classes = std::max<uint64_t>(1, config.labels.size()),
                 most = most_metrics_bytes(task, config);
  if (rows > most) return most;
  return std::min(most,
                  classes * classes * sizeof(uint64_t) + classes * (128 + rows * kScoreBytes));
}

[[noreturn]] void refuse_without_rows(const RowFiles& rows) {
  if (rows.skipped().count() == 0) fail(ErrorKind::kInput, "{}: has no rows", rows.file().string());
  fail(ErrorKind::kInput, "{}: all {} rows are wrong; the first: {}", rows.name(),
       rows.skipped().count(), rows.skipped().first()[0]);
}

}  // namespace

FileEvaluation::FileEvaluation(const Setup& setup, Engine& engine, const Plan& plan)
    : setup_(setup),
      engine_(engine),
      plan_(plan),
      evaluation_(make_evaluation(setup.task, setup.config, setup.scratch)) {}

uint64_t FileEvaluation::bytes(const Setup& setup, const Texts& texts, const Dims& capacity) {
  uint64_t reading = 0;  // one file after the other
  for (const std::filesystem::path& file : texts.files) {
    reading = std::max(reading, reading_bytes(file, texts.longest_text_bytes));
  }
  return metrics_bytes(setup.task, setup.config, texts.rows) +
         TextRunner::bytes(capacity, setup.encoding, texts.longest_text_bytes) + reading +
         texts.longest_word_bytes * setup.tokenizer.word_times();
}

std::set<std::string> FileEvaluation::metric_names() const {
  std::set<std::string> names = {"loss"};
  for (Metrics* metrics : evaluation_->possible_metrics()) {
    for (const auto& [name, value] : metrics->all()) names.insert(name);
    for (const std::string& name : metrics->sometimes()) names.insert(name);
  }
  return names;
}

RowReaderOptions FileEvaluation::row_options() const {
  RowReaderOptions options =
      reader_options(setup_.options, row_kind(setup_.encoding.labelling), LabelNeed::kRequired);
  options.label_separator =
      label_list_separator(setup_.encoding.labelling, setup_.options.label_separator);
  return options;
}

MetricValues FileEvaluation::run(const std::vector<std::filesystem::path>& files, uint64_t most) {
  RowReaderOptions reading = row_options();
  for (const std::filesystem::path& file : files) {
    reading.record_room =
        std::min(reading.record_room, TextRunner::record_room(plan_, setup_.encoding, file));
  }
  RowFiles rows(
      files,
      {.reading = reading, .skip_bad_rows = setup_.options.skip_bad_rows, .most_rows = most});
  MetricValues values = run(rows);
  if (rows.skipped().count() > 0) say(skipped_rows_text(rows.name(), rows.skipped().count()));
  if (long_rows_ > 0) say(long_texts_text(rows.name(), long_rows_, setup_.encoding));
  return values;
}

MetricValues FileEvaluation::run(const Dataset& data) {
  RowFiles rows(data, row_options());
  return run(rows);
}

MetricValues FileEvaluation::run(RowFiles& rows) {
  evaluation_->reset();
  engine_.take_loss();
  const LabelSet labels{setup_.config.labels};
  std::optional<RowLabeller> labeller;
  std::filesystem::path labelled_file;  // which it names
  TextRunner runner(engine_, plan_, setup_.tokenizer, setup_.encoding,
                    [this](const OwnedRow& row, std::span<const ScoredExample> windows) {
                      evaluation_->add(row, windows);
                    });
  Progress progress("evaluating " + rows.name(), 0, "rows");
  RowLabels labelled;
  for (Row row; rows.next(row); progress.update(runner.rows())) {
    if (!labeller || rows.file() != labelled_file) {
      labelled_file = rows.file();
      labeller.emplace(
          setup_.encoding.labelling,
          LabelCollector::Settings{
              .known = &labels, .need = LabelNeed::kRequired, .file = labelled_file.string()},
          setup_.options.label_separator);
    }
    try {
      labeller->add(row, labelled);
      runner.add(labelled_file.string(), row, labelled);
    } catch (const Error& error) {
      rows.leave_out(error);
    }
  }
  runner.finish();
  if (runner.rows() == 0) refuse_without_rows(rows);
  long_rows_ = runner.long_rows();
  MetricValues values = evaluation_->metrics().all();
  values["loss"] = engine_.take_loss() / double(std::max<uint64_t>(1, runner.targets()));
  values["examples"] = double(runner.rows());
  return values;
}

RowReaderOptions reader_options(const CommonOptions& options, RowKind kind, LabelNeed labels) {
  RowReaderOptions result;
  result.kind = kind;
  result.columns = {options.text_column, options.text_pair_column, options.label_column};
  result.labels = labels;
  result.has_header = options.header;
  return result;
}

}  // namespace snug
