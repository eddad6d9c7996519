// One label an example. Definitions are scikit-learn's: macro averages go over the classes that
// occur, expected or predicted.
#pragma once

#include <filesystem>
#include <optional>

#include "metrics/roc.h"
#include "metrics/score_rows.h"

namespace snug {

class ClassificationMetrics : public Metrics {
 public:
  // Scores that memory has no room for are sorted in the folder `scratch`.
  ClassificationMetrics(std::vector<std::string> labels, std::filesystem::path scratch);
  static uint64_t bytes(size_t classes);  // what it occupies at most

  void add(int32_t expected, int32_t predicted);
  // The area under the ROC curve needs probabilities, of every class and in every call.
  void add(int32_t expected, int32_t predicted, std::span<const double> probabilities);

  void reset() override;
  uint64_t examples() const override { return examples_; }
  // accuracy; precision, recall, f1 (of class 1 where there are two, else macro); these with
  // _micro, _macro, _weighted; matthews_correlation; roc_auc (of class 1 where there are two, else
  // the mean of each class against the rest).
  MetricValues all() override;
  std::vector<std::string> sometimes() const override;
  ScoreReport report() const override;

 private:
  // For more classes there is no confusion matrix and no area under the ROC curve: they would take
  // too much.
  static constexpr size_t kMostClasses = 256;

  double accuracy() const;
  double matthews() const;
  std::vector<ScoreRow> average_rows() const;

  std::vector<std::string> labels_;
  uint64_t examples_ = 0, correct_ = 0;
  std::vector<Counts> counts_;       // by class
  std::vector<uint64_t> confusion_;  // [expected, predicted]; empty for many classes
  std::optional<RocAreas> areas_;    // of class 1 where there are two
};

}  // namespace snug
