// Areas under ROC curves, one for each column of scores: the probability that a positive example is
// scored above a negative one, where equal scores count half.
#pragma once

#include <optional>

#include "metrics/external_sort.h"

namespace snug {

class RocAreas {
 public:
  // More scores than `most_scores` would fill the disk: then there are no areas, which is said
  // once.
  RocAreas(size_t columns, std::filesystem::path scratch, uint64_t most_scores = uint64_t{1} << 28);
  void add(size_t column, double score, bool positive);  // a score that is no number is kNumbers
  void reset();

  // Empty for a column without positives or without negatives.
  std::vector<std::optional<double>> areas();
  // The mean of those that there are: scikit-learn's macro average, which has no value where one of
  // them has none.
  std::optional<double> mean_area();

 private:
  struct Scored {
    double score;
    uint32_t column, positive;

    bool operator<(const Scored& other) const {
      return column != other.column ? column < other.column : score < other.score;
    }
  };

  size_t columns_;
  uint64_t most_scores_;
  bool too_many_ = false;
  ExternalSort<Scored> scores_;
};

}  // namespace snug
