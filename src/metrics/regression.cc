#include "metrics/regression.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "metrics/score_rows.h"

namespace snug {
namespace {

double correlation(double products, double squares, double other_squares) {
  // Two roots: the product of the squares may overflow or vanish.
  return std::clamp(ratio(products, std::sqrt(squares) * std::sqrt(other_squares)), -1.0, 1.0);
}

// Calls visit(rank, number) in the order of the keys. Equal keys have the mean of their ranks,
// which is known only at their end: one reader goes ahead to find it.
template <class Visit>
void for_each_rank(ExternalSort<KeyedNumber>& numbers, Visit visit) {
  auto ahead = numbers.read(0, 2), behind = numbers.read(1, 2);
  uint64_t begin = 0;  // of a group of equals; ranks count from 1
  KeyedNumber next;
  for (bool more = ahead.next(next); more;) {
    const double key = next.key;
    uint64_t end = begin;
    do ++end;
    while ((more = ahead.next(next)) && next.key == key);
    const double rank = double(begin + 1 + end) / 2;
    for (KeyedNumber number; begin < end && behind.next(number); ++begin) {
      visit(rank, number.number);
    }
  }
}

}  // namespace

RegressionMetrics::RegressionMetrics(std::filesystem::path scratch, size_t sort_bytes)
    : scratch_(std::move(scratch)), sort_bytes_(sort_bytes), pairs_(scratch_, sort_bytes) {}

void RegressionMetrics::add(double expected, double predicted) {
  if (!std::isfinite(expected) || !std::isfinite(predicted)) {
    fail(ErrorKind::kNumbers, "an example has {} where the model says {}: not both are finite",
         expected, predicted);
  }
  Sums& s = sums_;
  if (s.examples == 0) {
    s.expected_origin = expected;
    s.predicted_origin = predicted;
  }
  const double n = double(++s.examples), x = expected - s.expected_origin,
               y = predicted - s.predicted_origin;
  const double x_step = x - s.expected_mean, y_step = y - s.predicted_mean;
  s.expected_mean += x_step / n;
  s.predicted_mean += y_step / n;
  s.expected_squares += x_step * (x - s.expected_mean);
  s.predicted_squares += y_step * (y - s.predicted_mean);
  s.products += x_step * (y - s.predicted_mean);
  s.error_squares += (predicted - expected) * (predicted - expected);
  s.errors += std::abs(predicted - expected);
  pairs_.add({expected, predicted});
}

void RegressionMetrics::reset() {
  sums_ = {};
  pairs_.clear();
}

// Pearson's correlation of the ranks, whose mean is known.
double RegressionMetrics::spearman() {
  const double mean = double(sums_.examples + 1) / 2;
  ExternalSort<KeyedNumber> by_predicted(scratch_, sort_bytes_);
  double squares = 0, other_squares = 0, products = 0;
  for_each_rank(pairs_, [&](double rank, double predicted) {
    squares += (rank - mean) * (rank - mean);
    by_predicted.add({predicted, rank - mean});
  });
  for_each_rank(by_predicted, [&](double rank, double other) {
    other_squares += (rank - mean) * (rank - mean);
    products += (rank - mean) * other;
  });
  return correlation(products, squares, other_squares);
}

MetricValues RegressionMetrics::all() {
  const Sums& s = sums_;
  const double n = double(s.examples);
  // scikit-learn's values where the data has no spread.
  const double r2 = s.expected_squares > 0 ? 1 - s.error_squares / s.expected_squares
                    : s.error_squares == 0 ? 1
                                           : 0;
  return {{"mse", ratio(s.error_squares, n)},
          {"mae", ratio(s.errors, n)},
          {"r2", r2},
          {"pearson", correlation(s.products, s.expected_squares, s.predicted_squares)},
          {"spearmanr", spearman()}};
}

}  // namespace snug
