#include "train/metrics.h"

#include <algorithm>
#include <cmath>

namespace snug {
namespace {

double ratio(double numerator, double denominator) { return denominator == 0 ? 0 : numerator / denominator; }

}  // namespace

ClassificationMetrics::ClassificationMetrics(size_t classes)
    : expected_(classes, 0), predicted_(classes, 0), hits_(classes, 0) {}

void ClassificationMetrics::add(int32_t expected, int32_t predicted) {
  ++examples_;
  ++expected_[size_t(expected)];
  ++predicted_[size_t(predicted)];
  if (expected != predicted) return;
  ++correct_;
  ++hits_[size_t(expected)];
}

void ClassificationMetrics::reset() {
  examples_ = correct_ = 0;
  for (auto* counts : {&expected_, &predicted_, &hits_}) std::fill(counts->begin(), counts->end(), 0);
}

double ClassificationMetrics::accuracy() const { return ratio(double(correct_), double(examples_)); }

double ClassificationMetrics::f1(size_t c) const {
  return ratio(2.0 * double(hits_[c]), double(expected_[c] + predicted_[c]));
}

double ClassificationMetrics::f1_macro() const {
  double sum = 0, classes = 0;
  for (size_t c = 0; c < expected_.size(); ++c) {
    if (expected_[c] + predicted_[c] == 0) continue;
    sum += f1(c);
    classes += 1;
  }
  return ratio(sum, classes);
}

// Gorodkin's multi-class form; it needs the confusion matrix's sums only, not the matrix.
double ClassificationMetrics::matthews() const {
  const double n = double(examples_), correct = double(correct_);
  double both = 0, expected_squares = 0, predicted_squares = 0;
  for (size_t c = 0; c < expected_.size(); ++c) {
    both += double(expected_[c]) * double(predicted_[c]);
    expected_squares += double(expected_[c]) * double(expected_[c]);
    predicted_squares += double(predicted_[c]) * double(predicted_[c]);
  }
  return ratio(correct * n - both, std::sqrt((n * n - predicted_squares) * (n * n - expected_squares)));
}

std::map<std::string, double> ClassificationMetrics::all() const {
  return {{"accuracy", accuracy()},
          {"f1", expected_.size() == 2 ? f1(1) : f1_macro()},
          {"f1_macro", f1_macro()},
          {"f1_micro", f1_micro()},
          {"matthews_correlation", matthews()}};
}

int32_t argmax(std::span<const float> scores) {
  return int32_t(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

}  // namespace snug
