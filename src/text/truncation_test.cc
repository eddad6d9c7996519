#include "text/truncation.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace snug {
namespace {

struct Row {
  TextLengths lengths;
  size_t room;
  Truncation truncation;
  TextLengths expected;
};

TEST(Truncation, KeepsWhatTheReferenceKeeps) {
  using enum Truncation;
  const Row rows[] = {
      {{10, std::nullopt}, 4, kLongestFirst, {4, std::nullopt}},
      {{10, std::nullopt}, 4, kNone, {10, std::nullopt}},
      {{3, 3}, 6, kLongestFirst, {3, 3}},
      {{10, 3}, 8, kLongestFirst, {5, 3}},
      {{3, 10}, 8, kLongestFirst, {3, 5}},
      {{10, 10}, 7, kLongestFirst, {3, 4}},  // equal: the second gets the odd one
      {{11, 10}, 7, kLongestFirst, {4, 3}},  // else the longer
      {{10, 11}, 7, kLongestFirst, {3, 4}},
      {{0, 9}, 4, kLongestFirst, {0, 4}},
      {{9, 9}, 0, kOnlyFirst, {0, 0}},
      {{10, 3}, 8, kOnlyFirst, {5, 3}},
      {{10, 3}, 11, kOnlySecond, {10, 1}},
      {{10, std::nullopt}, 11, kOnlySecond, {10, std::nullopt}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(truncate(row.lengths, row.room, row.truncation), row.expected)
        << row.lengths.first << " " << row.lengths.second.value_or(0) << " in " << row.room;
  }
}

TEST(Truncation, RefusesToShortenToNothing) {
  const auto kind = [](TextLengths lengths, size_t room, Truncation truncation) {
    try {
      truncate(lengths, room, truncation);
    } catch (const Error& error) {
      return static_cast<int>(error.kind());
    }
    return 0;
  };
  EXPECT_EQ(kind({10, 8}, 8, Truncation::kOnlyFirst), 3);
  EXPECT_EQ(kind({10, 8}, 10, Truncation::kOnlySecond), 3);
  EXPECT_EQ(kind({10, std::nullopt}, 5, Truncation::kOnlySecond), 2);
}

TEST(Windows, CoverEverythingAndShareTheStride) {
  using Ranges = std::vector<TokenRange>;
  EXPECT_EQ(window_ranges(0, 4, 1), (Ranges{{0, 0}}));
  EXPECT_EQ(window_ranges(4, 4, 1), (Ranges{{0, 4}}));
  EXPECT_EQ(window_ranges(5, 4, 1), (Ranges{{0, 4}, {3, 5}}));
  EXPECT_EQ(window_ranges(10, 4, 0), (Ranges{{0, 4}, {4, 8}, {8, 10}}));
  EXPECT_EQ(window_ranges(7, 3, 2), (Ranges{{0, 3}, {1, 4}, {2, 5}, {3, 6}, {4, 7}}));
}

}  // namespace
}  // namespace snug
