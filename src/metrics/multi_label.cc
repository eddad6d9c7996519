#include "metrics/multi_label.h"

#include <algorithm>

namespace snug {

MultiLabelMetrics::MultiLabelMetrics(std::vector<std::string> labels, std::filesystem::path scratch,
                                     double threshold)
    : labels_(std::move(labels)),
      threshold_(threshold),
      counts_(labels_.size()),
      areas_(labels_.size(), std::move(scratch)) {}

uint64_t MultiLabelMetrics::bytes(size_t labels) { return labels * sizeof(Counts) + kSortBytes; }

void MultiLabelMetrics::add(std::span<const uint8_t> expected,
                            std::span<const double> probabilities) {
  Counts example;
  for (size_t i = 0; i < labels_.size(); ++i) {
    const bool has = expected[i] != 0, predicted = probabilities[i] > threshold_;
    for (Counts* const counts : {&counts_[i], &example}) {
      counts->expected += has;
      counts->predicted += predicted;
      counts->hits += has && predicted;
    }
    areas_.add(i, probabilities[i], has);
  }
  ++examples_;
  correct_ += example.hits == example.expected && example.hits == example.predicted;
  const ScoreRow row = score("", example);
  samples_.precision += row.precision;
  samples_.recall += row.recall;
  samples_.f1 += row.f1;
  samples_.support += row.support;
}

void MultiLabelMetrics::reset() {
  examples_ = correct_ = 0;
  std::ranges::fill(counts_, Counts{});
  samples_ = {};
  areas_.reset();
}

std::vector<ScoreRow> MultiLabelMetrics::rows() const {
  std::vector<ScoreRow> rows;
  for (size_t i = 0; i < labels_.size(); ++i) rows.push_back(score(labels_[i], counts_[i]));
  return rows;
}

std::vector<ScoreRow> MultiLabelMetrics::average_rows(std::span<const ScoreRow> rows) const {
  std::vector<ScoreRow> result = averages(counts_, rows);
  const double n = double(examples_);
  result.push_back({.name = "samples",
                    .precision = ratio(samples_.precision, n),
                    .recall = ratio(samples_.recall, n),
                    .f1 = ratio(samples_.f1, n),
                    .support = samples_.support});
  return result;
}

MetricValues MultiLabelMetrics::all() {
  const std::vector<ScoreRow> average = average_rows(rows());
  const ScoreRow& micro = average[0];
  MetricValues values = {{"accuracy", ratio(double(correct_), double(examples_))},
                         {"precision", micro.precision},
                         {"recall", micro.recall},
                         {"f1", micro.f1}};
  put_averages(average, values);
  if (const auto area = areas_.mean_area()) values["roc_auc"] = *area;
  return values;
}

std::vector<std::string> MultiLabelMetrics::sometimes() const { return {"roc_auc"}; }

ScoreReport MultiLabelMetrics::report() const {
  ScoreReport report;
  report.unit = "label";
  report.rows = rows();
  report.averages = average_rows(report.rows);
  return report;
}

}  // namespace snug
