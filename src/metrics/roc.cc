#include "metrics/roc.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "core/progress.h"

namespace snug {
namespace {

// Fed in ascending order of scores, one group of equal scores after the other.
struct Area {
  uint64_t positives = 0, negatives = 0;
  uint64_t group_positives = 0, group_negatives = 0;
  double twice = 0;  // pairs in the right order, equal ones half, times two

  void end_group() {
    twice += double(group_positives) * double(2 * negatives + group_negatives);
    positives += std::exchange(group_positives, 0);
    negatives += std::exchange(group_negatives, 0);
  }
  std::optional<double> value() const {
    if (positives == 0 || negatives == 0) return std::nullopt;
    return twice / (2 * double(positives) * double(negatives));
  }
};

}  // namespace

RocAreas::RocAreas(size_t columns, std::filesystem::path scratch, uint64_t most_scores)
    : columns_(columns), most_scores_(most_scores), scores_(std::move(scratch)) {}

void RocAreas::add(size_t column, double score, bool positive) {
  if (too_many_) return;
  if (std::isnan(score)) {
    fail(ErrorKind::kNumbers, "the model's score of an example is not a number");
  }
  if (scores_.size() == most_scores_) {
    warn(fmt::format("roc_auc is left out: it would sort more than {} scores", most_scores_));
    reset();
    too_many_ = true;
    return;
  }
  scores_.add({score, uint32_t(column), positive});
}

void RocAreas::reset() {
  scores_.clear();
  too_many_ = false;
}

std::vector<std::optional<double>> RocAreas::areas() {
  std::vector<std::optional<double>> result(columns_);
  auto reader = scores_.read();
  Scored previous{}, scored;
  Area area;
  const auto end_column = [&] {
    area.end_group();
    result[previous.column] = std::exchange(area, {}).value();
  };
  for (bool first = true; reader.next(scored); first = false) {
    if (!first && scored.column != previous.column) {
      end_column();
    } else if (!first && scored.score != previous.score) {
      area.end_group();
    }
    ++(scored.positive ? area.group_positives : area.group_negatives);
    previous = scored;
  }
  if (scores_.size() > 0) end_column();
  return result;
}

std::optional<double> RocAreas::mean_area() {
  double sum = 0, count = 0;
  for (const auto& area : areas()) {
    if (!area) continue;
    sum += *area;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

}  // namespace snug
