#include "metrics/score_rows.h"

namespace snug {

double ratio(double numerator, double denominator) {
  return denominator == 0 ? 0 : numerator / denominator;
}

ScoreRow score(std::string name, const Counts& counts) {
  const double hits = double(counts.hits);
  return {.name = std::move(name),
          .precision = ratio(hits, double(counts.predicted)),
          .recall = ratio(hits, double(counts.expected)),
          .f1 = ratio(2 * hits, double(counts.predicted + counts.expected)),
          .support = counts.expected};
}

std::vector<ScoreRow> averages(std::span<const Counts> counts, std::span<const ScoreRow> rows) {
  Counts all;
  for (const Counts& c : counts) {
    all.hits += c.hits;
    all.predicted += c.predicted;
    all.expected += c.expected;
  }
  ScoreRow macro{.name = "macro", .support = all.expected},
      weighted{.name = "weighted", .support = all.expected};
  for (const ScoreRow& row : rows) {
    for (double ScoreRow::*const value : {&ScoreRow::precision, &ScoreRow::recall, &ScoreRow::f1}) {
      macro.*value += row.*value;
      weighted.*value += row.*value * double(row.support);
    }
  }
  for (double ScoreRow::*const value : {&ScoreRow::precision, &ScoreRow::recall, &ScoreRow::f1}) {
    macro.*value = ratio(macro.*value, double(rows.size()));
    weighted.*value = ratio(weighted.*value, double(all.expected));
  }
  return {score("micro", all), macro, weighted};
}

void put_averages(std::span<const ScoreRow> averages, MetricValues& values) {
  for (const ScoreRow& row : averages) {
    values["precision_" + row.name] = row.precision;
    values["recall_" + row.name] = row.recall;
    values["f1_" + row.name] = row.f1;
  }
}

}  // namespace snug
