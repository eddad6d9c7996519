#include "data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace snug {
namespace {

std::vector<uint64_t> order(uint64_t rows, uint64_t seed, uint64_t epoch) {
  const Permutation permutation(rows, seed, epoch);
  std::vector<uint64_t> out;
  for (uint64_t i = 0; i < rows; ++i) out.push_back(permutation(i));
  return out;
}

TEST(Permutation, IsABijection) {
  for (const uint64_t rows : {1, 2, 3, 7, 16, 17, 255, 256, 257, 1000, 4097, 65536, 100'003}) {
    std::vector<bool> seen(rows);
    for (const uint64_t row : order(rows, 42, 3)) {
      ASSERT_LT(row, rows);
      ASSERT_FALSE(seen[row]);
      seen[row] = true;
    }
  }
}

TEST(Permutation, StaysInRangeForHugeData) {
  for (const uint64_t rows : {uint64_t{20'000'000'000}, uint64_t{1} << 62, ~uint64_t{0}}) {
    const Permutation permutation(rows, 1, 0);
    for (uint64_t i = 0; i < 1000; ++i) EXPECT_LT(permutation(rows - 1 - i), rows);
  }
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  EXPECT_EQ(order(1000, 1, 2), order(1000, 1, 2));
  EXPECT_NE(order(1000, 1, 2), order(1000, 1, 3));
  EXPECT_NE(order(1000, 1, 2), order(1000, 2, 2));
  EXPECT_NE(order(1000, 1, 2), order(1000, 2, 1));
}

// Which row comes first over many epochs: chi-square with rows - 1 degrees of freedom, whose mean
// is rows - 1 and variance 2 (rows - 1); six standard deviations are allowed.
TEST(Permutation, PutsEveryRowFirstEquallyOften) {
  for (const uint64_t rows : {2, 5, 37, 100}) {
    constexpr double kPerRow = 500;
    std::vector<double> first(rows), last(rows);
    for (uint64_t epoch = 0; epoch < rows * uint64_t(kPerRow); ++epoch) {
      const Permutation permutation(rows, 42, epoch);
      ++first[permutation(0)];
      ++last[permutation(rows - 1)];
    }
    const double freedom = double(rows - 1);
    for (const auto& counts : {first, last}) {
      double chi_square = 0;
      for (const double count : counts) {
        chi_square += (count - kPerRow) * (count - kPerRow) / kPerRow;
      }
      EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom)) << rows;
    }
  }
}

// Rows sorted by label must come mixed: neighbours in the order are not neighbours in the file.
TEST(Permutation, SeparatesNeighbours) {
  const std::vector<uint64_t> rows = order(10'000, 42, 0);
  size_t same_half = 0, adjacent = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    same_half += (rows[i] < 5000) == (rows[i - 1] < 5000);
    adjacent += rows[i] == rows[i - 1] + 1 || rows[i] + 1 == rows[i - 1];
  }
  EXPECT_NEAR(double(same_half), 5000, 300);  // six standard deviations of 50
  EXPECT_LT(adjacent, 20u);
}

}  // namespace
}  // namespace snug
