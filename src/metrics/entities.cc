#include "metrics/entities.h"

#include <algorithm>

#include "core/error.h"

namespace snug {

EntityMetrics::EntityMetrics(std::span<const std::string> labels, TagScheme scheme)
    : tags_(labels, scheme), counts_(tags_.types().size()) {}

void EntityMetrics::add(std::span<const int32_t> expected, std::span<const int32_t> predicted) {
  SNUG_CHECK(expected.size() == predicted.size());
  ++sequences_;
  words_ += expected.size();
  for (size_t i = 0; i < expected.size(); ++i) correct_ += expected[i] == predicted[i];
  tags_.find_entities(expected, expected_);
  tags_.find_entities(predicted, predicted_);
  for (const Entity& entity : expected_) ++counts_[size_t(entity.type)].expected;
  auto candidate = expected_.begin();  // no two entities of a sequence have the same last word
  for (const Entity& entity : predicted_) {
    Counts& counts = counts_[size_t(entity.type)];
    ++counts.predicted;
    while (candidate != expected_.end() && candidate->last < entity.last) ++candidate;
    counts.hits += candidate != expected_.end() && *candidate == entity;
  }
}

void EntityMetrics::reset() {
  sequences_ = words_ = correct_ = 0;
  std::ranges::fill(counts_, Counts{});
}

std::vector<ScoreRow> EntityMetrics::rows() const {
  std::vector<ScoreRow> rows;
  for (size_t type = 0; type < counts_.size(); ++type) {
    if (counts_[type].occurs()) rows.push_back(score(tags_.types()[type], counts_[type]));
  }
  return rows;
}

MetricValues EntityMetrics::all() {
  const std::vector<ScoreRow> average = averages(counts_, rows());
  const ScoreRow& micro = average[0];
  MetricValues values = {{"precision", micro.precision},
                         {"recall", micro.recall},
                         {"f1", micro.f1},
                         {"accuracy", ratio(double(correct_), double(words_))}};
  put_averages(average, values);
  return values;
}

ScoreReport EntityMetrics::report() const {
  ScoreReport report;
  report.unit = "entity";
  report.rows = rows();
  report.averages = averages(counts_, report.rows);
  return report;
}

}  // namespace snug
