// Any number of labels an example. Definitions are scikit-learn's for indicator matrices: macro
// averages go over all labels, whether they occur or not.
#pragma once

#include <filesystem>

#include "metrics/roc.h"
#include "metrics/score_rows.h"

namespace snug {

class MultiLabelMetrics : public Metrics {
 public:
  // A label is predicted where its probability is above the threshold.
  MultiLabelMetrics(std::vector<std::string> labels, std::filesystem::path scratch,
                    double threshold = 0.5);
  static uint64_t bytes(size_t labels);

  // expected: 1 where the example has the label, else 0. Both by label.
  void add(std::span<const uint8_t> expected, std::span<const double> probabilities);

  void reset() override;
  uint64_t examples() const override { return examples_; }
  // accuracy (of examples with all labels right); precision, recall, f1 (micro); these with _micro,
  // _macro, _weighted, _samples; roc_auc (the mean over labels).
  MetricValues all() override;
  std::vector<std::string> sometimes() const override;
  ScoreReport report() const override;

 private:
  std::vector<ScoreRow> rows() const;
  std::vector<ScoreRow> average_rows(std::span<const ScoreRow> rows) const;

  std::vector<std::string> labels_;
  double threshold_;
  uint64_t examples_ = 0, correct_ = 0;
  std::vector<Counts> counts_;  // by label
  ScoreRow samples_;            // sums over the examples
  RocAreas areas_;
};

}  // namespace snug
