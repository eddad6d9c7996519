#include "text/merge_table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>

namespace snug {
namespace {

using Symbols = std::vector<int32_t>;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t operator()(uint64_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

// The definition: look at all pairs, merge the first of the lowest rank, again and again.
Symbols merge_naively(const std::vector<Merge>& merges, Symbols symbols) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
  while (true) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && it->second < best) best = it->second, at = i;
    }
    if (best == merges.size()) return symbols;
    symbols[at] = merges[best].merged;
    symbols.erase(symbols.begin() + at + 1);
  }
}

Symbols merge_with(const MergeTable& table, Symbols symbols) {
  MergeTable::Workspace work;
  symbols.resize(table.apply(symbols, work));
  return symbols;
}

// As a trainer leaves it: each merge makes a new symbol of older ones. Otherwise in any order, with
// pairs that occur twice.
std::vector<Merge> random_merges(Random& random, int32_t letters, int count, bool in_order) {
  std::vector<Merge> merges;
  for (int i = 0; i < count; ++i) {
    const auto symbol = [&] { return static_cast<int32_t>(random(letters + i)); };
    merges.push_back({symbol(), symbol(), letters + i});
  }
  if (!in_order) {
    for (size_t i = merges.size() - 1; i > 0; --i) std::swap(merges[i], merges[random(i + 1)]);
  }
  return merges;
}

Symbols random_word(Random& random, int32_t letters, size_t length) {
  Symbols word(length);
  for (int32_t& symbol : word) symbol = static_cast<int32_t>(random(letters));
  return word;
}

TEST(MergeTable, AgreesWithTheDefinition) {
  Random random(5);
  for (int trial = 0; trial < 400; ++trial) {
    const int32_t letters = 2 + static_cast<int32_t>(random(3));
    const auto merges = random_merges(random, letters, 1 + random(40), trial % 2 == 0);
    const MergeTable table(merges);
    for (size_t length : {0, 1, 2, 3, 7, 30, 63, 64, 65, 66, 200}) {
      const Symbols word = random_word(random, letters, length);
      ASSERT_EQ(merge_with(table, word), merge_naively(merges, word)) << trial << " " << length;
    }
  }
}

TEST(MergeTable, HugeWordsAgreeWithTheDefinition) {
  Random random(6);
  for (int trial = 0; trial < 3; ++trial) {
    const auto merges = random_merges(random, 3, 12, trial < 2);
    const Symbols word = random_word(random, 3, 17'000);
    ASSERT_EQ(merge_with(MergeTable(merges), word), merge_naively(merges, word));
  }
}

TEST(MergeTable, WithoutMergesNothingChanges) {
  const Symbols word = {1, 2, 1, 2};
  EXPECT_EQ(merge_with(MergeTable(), word), word);
  EXPECT_EQ(merge_with(MergeTable(std::vector<Merge>()), word), word);
}

TEST(MergeTable, HugeWordsTakeLittleMoreThanLinearTime) {
  Random random(7);
  const MergeTable table(random_merges(random, 20, 2000, true));
  const Symbols word = random_word(random, 20, 4'000'000);
  const auto start = std::chrono::steady_clock::now();
  const size_t left = merge_with(table, word).size();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("          a word of 4 MB became %zu tokens in %.2f s\n", left, seconds.count());
  EXPECT_LT(seconds.count(), 60);  // quadratic time would be hours
}

}  // namespace
}  // namespace snug
