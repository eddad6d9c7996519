// Precision, recall and F1 from counts, and their averages: the same for classes, labels and
// entities.
#pragma once

#include <span>
#include <string>

#include "metrics/metrics.h"

namespace snug {

struct Counts {
  uint64_t hits = 0, predicted = 0, expected = 0;

  bool occurs() const { return predicted + expected > 0; }
};

double ratio(double numerator, double denominator);  // 0 for 0/0

ScoreRow score(std::string name, const Counts& counts);

// micro: of all counts together; macro: the mean of the rows; weighted: their mean by support.
std::vector<ScoreRow> averages(std::span<const Counts> counts, std::span<const ScoreRow> rows);

// "precision_macro", "recall_macro", "f1_macro" and so on.
void put_averages(std::span<const ScoreRow> averages, MetricValues& values);

}  // namespace snug
