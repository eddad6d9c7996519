// Numbers against numbers: errors, and both correlations. Definitions are scikit-learn's and
// SciPy's; a correlation with a constant, which has none, is 0.
#pragma once

#include <filesystem>

#include "metrics/external_sort.h"
#include "metrics/metrics.h"

namespace snug {

struct KeyedNumber {
  double key, number;

  bool operator<(const KeyedNumber& other) const { return key < other.key; }
};

class RegressionMetrics : public Metrics {
 public:
  explicit RegressionMetrics(std::filesystem::path scratch, size_t sort_bytes = kSortBytes);
  static uint64_t bytes() { return 2 * kSortBytes; }

  void add(double expected, double predicted);  // what is not finite is kNumbers

  void reset() override;
  uint64_t examples() const override { return sums_.examples; }
  MetricValues all() override;  // mse, mae, r2, pearson, spearmanr

 private:
  // Means, and sums of squares and products around them (Welford), of the differences from the
  // first example: plain sums of squares lose everything where the mean is large beside the spread.
  struct Sums {
    uint64_t examples = 0;
    double expected_origin = 0, predicted_origin = 0;
    double expected_mean = 0, predicted_mean = 0;
    double expected_squares = 0, predicted_squares = 0, products = 0;
    double error_squares = 0, errors = 0;
  };

  double spearman();

  std::filesystem::path scratch_;
  size_t sort_bytes_;
  Sums sums_;
  ExternalSort<KeyedNumber> pairs_;  // expected, predicted
};

}  // namespace snug
