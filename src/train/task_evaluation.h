// How well a model does its task, text by text: the task's metrics, fed by a TextRunner.
#pragma once

#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "data/row_files.h"
#include "metrics/metrics.h"
#include "train/task.h"
#include "train/text_runner.h"

namespace snug {

// Windows of a text have one say together: the mean of their scores.
void mean_scores(std::span<const ScoredExample> windows, std::vector<float>& out);
// The best tag of every word and its probability; -1 where no token of it was looked at.
struct BestTag {
  int32_t tag = -1;
  double probability = 0;
};
void best_tags(const OwnedRow& row, std::span<const ScoredExample> windows, size_t labels,
               std::vector<BestTag>& out);

class TaskEvaluation {
 public:
  virtual ~TaskEvaluation() = default;
  virtual void add(const OwnedRow& row, std::span<const ScoredExample> windows) = 0;
  virtual Metrics& metrics() = 0;
  // Which of them it is depends on the rows.
  virtual std::vector<Metrics*> possible_metrics() { return {&metrics()}; }
  void reset() {
    for (Metrics* metrics : possible_metrics()) metrics->reset();
  }
};

// Not for language models, which have no texts of their own.
class FileEvaluation {
 public:
  struct Setup {
    const CommonOptions& options;
    Task task;
    const ModelConfig& config;  // with the labels
    const Tokenizer& tokenizer;
    EncodingOptions encoding;
    std::filesystem::path scratch;  // scores that are sorted and have no room in memory
  };
  // All must outlive it.
  FileEvaluation(const Setup& setup, Engine& engine, const Plan& plan);
  // What it takes at most while it runs.
  struct Texts {
    std::vector<std::filesystem::path> files;
    uint64_t rows = std::numeric_limits<uint64_t>::max();
    uint64_t longest_text_bytes = 0;  // 0: not known, what is above kUsualTextBytes comes on top
    uint64_t longest_word_bytes = 0;  // likewise
  };
  static uint64_t bytes(const Setup& setup, const Texts& texts, const Dims& capacity);

  // Every row of the files, the first `most` of them or those of a dataset; also "loss" and
  // "examples".
  MetricValues run(const std::vector<std::filesystem::path>& files, uint64_t most);
  MetricValues run(const Dataset& data);
  // That run() may give, besides "examples"; before the first one.
  std::set<std::string> metric_names() const;
  ScoreReport report() { return evaluation_->metrics().report(); }
  uint64_t long_rows() const { return long_rows_; }  // of the last run: longer than max_length

 private:
  MetricValues run(RowFiles& rows);
  RowReaderOptions row_options() const;

  Setup setup_;
  Engine& engine_;
  const Plan& plan_;
  std::unique_ptr<TaskEvaluation> evaluation_;
  uint64_t long_rows_ = 0;
};

// Rows of texts as these flags describe them.
RowReaderOptions reader_options(const CommonOptions& options, RowKind kind, LabelNeed labels);

}  // namespace snug
