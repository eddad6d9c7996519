#include "metrics/classification.h"

#include <algorithm>
#include <cmath>

namespace snug {

ClassificationMetrics::ClassificationMetrics(std::vector<std::string> labels,
                                             std::filesystem::path scratch)
    : labels_(std::move(labels)), counts_(labels_.size()) {
  const size_t classes = labels_.size();
  if (classes > kMostClasses) return;
  confusion_.resize(classes * classes);
  areas_.emplace(classes == 2 ? 1 : classes, std::move(scratch));
}

uint64_t ClassificationMetrics::bytes(size_t classes) {
  const uint64_t always = classes * sizeof(Counts);
  return classes > kMostClasses ? always
                                : always + classes * classes * sizeof(uint64_t) + kSortBytes;
}

void ClassificationMetrics::add(int32_t expected, int32_t predicted) {
  ++examples_;
  ++counts_[size_t(expected)].expected;
  ++counts_[size_t(predicted)].predicted;
  if (!confusion_.empty()) ++confusion_[size_t(expected) * labels_.size() + size_t(predicted)];
  if (expected != predicted) return;
  ++correct_;
  ++counts_[size_t(expected)].hits;
}

void ClassificationMetrics::add(int32_t expected, int32_t predicted,
                                std::span<const double> probabilities) {
  add(expected, predicted);
  if (!areas_) return;
  if (probabilities.size() == 2) return areas_->add(0, probabilities[1], expected == 1);
  for (size_t c = 0; c < probabilities.size(); ++c) {
    areas_->add(c, probabilities[c], size_t(expected) == c);
  }
}

void ClassificationMetrics::reset() {
  examples_ = correct_ = 0;
  std::ranges::fill(counts_, Counts{});
  std::ranges::fill(confusion_, 0);
  if (areas_) areas_->reset();
}

double ClassificationMetrics::accuracy() const {
  return ratio(double(correct_), double(examples_));
}

// Gorodkin's multi-class form; it needs the confusion matrix's sums only, not the matrix.
double ClassificationMetrics::matthews() const {
  const double n = double(examples_), correct = double(correct_);
  double both = 0, expected_squares = 0, predicted_squares = 0;
  for (const Counts& c : counts_) {
    both += double(c.expected) * double(c.predicted);
    expected_squares += double(c.expected) * double(c.expected);
    predicted_squares += double(c.predicted) * double(c.predicted);
  }
  return ratio(correct * n - both,
               std::sqrt((n * n - predicted_squares) * (n * n - expected_squares)));
}

std::vector<ScoreRow> ClassificationMetrics::average_rows() const {
  std::vector<ScoreRow> occurring;
  for (const Counts& c : counts_) {
    if (c.occurs()) occurring.push_back(score("", c));
  }
  return averages(counts_, occurring);
}

MetricValues ClassificationMetrics::all() {
  const std::vector<ScoreRow> average = average_rows();
  const ScoreRow main = labels_.size() == 2 ? score("", counts_[1]) : average[1];
  MetricValues values = {{"accuracy", accuracy()},
                         {"precision", main.precision},
                         {"recall", main.recall},
                         {"f1", main.f1},
                         {"matthews_correlation", matthews()}};
  put_averages(average, values);
  if (const auto area = areas_ ? areas_->mean_area() : std::nullopt) values["roc_auc"] = *area;
  return values;
}

std::vector<std::string> ClassificationMetrics::sometimes() const {
  return areas_ ? std::vector<std::string>{"roc_auc"} : std::vector<std::string>{};
}

ScoreReport ClassificationMetrics::report() const {
  ScoreReport report;
  report.unit = "class";
  report.averages = average_rows();
  const size_t classes = labels_.size();
  for (size_t c = 0; c < classes; ++c) report.rows.push_back(score(labels_[c], counts_[c]));
  if (confusion_.empty()) return report;
  for (size_t c = 0; c < classes; ++c) {
    report.confusion.emplace_back(confusion_.begin() + c * classes,
                                  confusion_.begin() + (c + 1) * classes);
  }
  return report;
}

}  // namespace snug
