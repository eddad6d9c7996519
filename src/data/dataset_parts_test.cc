#include <map>
#include <numeric>
#include <set>

#include "core/philox.h"
#include "core/progress.h"
#include "data/batches.h"
#include "data/dataset.h"
#include "data/epoch_order.h"
#include "data/row_files.h"
#include "data/test_support.h"

namespace snug {
namespace {

class DatasetPartsTest : public ::testing::Test {
 protected:
  DatasetPartsTest() { set_quiet(true); }

  std::filesystem::path write(const std::string& name, size_t rows,
                              const std::vector<std::string>& labels) const {
    std::string csv = "text,label\n";
    for (size_t i = 0; i < rows; ++i) {
      csv += fmt::format("{} {},{}\n", name, i, labels[i % labels.size()]);
    }
    return folder_.write(name, csv);
  }
  DatasetOptions options() const {
    return {.cache_folder = folder_.path() / "cache", .threads = 2};
  }
  size_t caches() const {
    const std::filesystem::directory_iterator begin(folder_.path() / "cache");
    return size_t(std::distance(begin, std::filesystem::directory_iterator()));
  }
  // Texts of this many words as windows of three tokens.
  Dataset windows(const std::vector<size_t>& words) const {
    std::string csv = "text,label\n";
    for (size_t i = 0; i < words.size(); ++i) {
      csv += std::to_string(i);
      for (size_t w = 1; w < words[i]; ++w) csv += " w";
      csv += fmt::format(",{}\n", i % 2);
    }
    DatasetOptions cut = options();
    cut.encoding.max_length = 3;
    cut.encoding.long_texts = LongTexts::kWindows;
    return Dataset::open(folder_.write("windows.csv", csv), FakeTokenizer(1000, /*specials=*/false),
                         cut);
  }

  TemporaryFolder folder_;
  FakeTokenizer tokenizer_;
};

std::vector<std::string> texts_of(const Dataset& data) {
  std::vector<std::string> texts;
  RowFiles rows(data, {});
  for (Row row; rows.next(row);) texts.emplace_back(row.text);
  return texts;
}

TEST_F(DatasetPartsTest, SeveralFilesShareTheirLabels) {
  // No file alone has all classes; each has them in another order.
  const std::vector files = {write("a.csv", 5, {"2", "0"}), write("b.csv", 4, {"1"}),
                             write("c.csv", 3, {"0", "2", "1"})};
  const Dataset data = Dataset::open(files, tokenizer_, options());
  EXPECT_EQ(data.rows(), 12u);
  EXPECT_EQ(data.labels().names, (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(data.label_counts(), (std::vector<uint64_t>{3, 5, 4}));
  std::vector<int32_t> labels;
  RowByRow rows(data);
  for (uint64_t row = 0; row < data.rows(); ++row) labels.push_back(rows.read(row).labels[0]);
  EXPECT_EQ(labels, (std::vector<int32_t>{2, 0, 2, 0, 2, 1, 1, 1, 1, 0, 2, 1}));
  EXPECT_EQ(data.origin(8).source, 1u);
  EXPECT_EQ(data.origin(8).number, 3u);
  EXPECT_EQ(texts_of(data)[9], "c.csv 0");
}

TEST_F(DatasetPartsTest, AddingAFileBuildsOnlyItsCache) {
  const std::vector files = {write("a.csv", 5, {"yes", "no"}), write("b.csv", 4, {"maybe"})};
  Dataset::open(files[0], tokenizer_, options());
  EXPECT_EQ(caches(), 1u);
  const auto first = *std::filesystem::directory_iterator(folder_.path() / "cache");
  const auto built = std::filesystem::last_write_time(first);
  const Dataset both = Dataset::open(files, tokenizer_, options());
  EXPECT_EQ(caches(), 2u);
  EXPECT_EQ(std::filesystem::last_write_time(first), built);
  EXPECT_EQ(both.labels().names, (std::vector<std::string>{"maybe", "no", "yes"}));
}

TEST_F(DatasetPartsTest, RefusesLabelsThatDoNotGoTogether) {
  const struct {
    std::vector<std::string> a, b;
    const char* expected;
  } cases[] = {{{"yes"}, {"yes"}, "a.csv and 1 more: every row has the label \"yes\""},
               {{"yes", "no"}, {"Yes"}, "b.csv: label \"Yes\" differs from \"yes\" in "},
               {{"0", "1"}, {"-1", "x"}, "no error"},
               {{"0", "1"}, {"-1", "2"}, "label \"-1\" marks rows without a label"}};
  for (const auto& test : cases) {
    const std::vector files = {write("a.csv", 4, test.a), write("b.csv", 4, test.b)};
    const std::string error = error_of([&] { Dataset::open(files, tokenizer_, options()); });
    EXPECT_NE(error.find(test.expected), error.npos) << error;
  }
  const std::string error =
      error_of([&] { Dataset::open(write("a.csv", 4, {"yes"}), tokenizer_, options()); });
  EXPECT_NE(error.find("a.csv: every row has the label \"yes\"; expected at least two classes"),
            error.npos)
      << error;
}

TEST_F(DatasetPartsTest, SplitsBySeedWithoutOverlap) {
  for (const size_t rows : {7u, 100u, 5003u}) {
    const std::vector files = {write("a.csv", rows, {"yes", "no"}),
                               write("b.csv", rows / 2 + 1, {"yes"})};
    const Dataset data = Dataset::open(files, tokenizer_, options());
    std::set<std::vector<std::string>> choices;
    for (const uint64_t seed : {1, 2, 3}) {
      for (const double percentage : {0.01, 5.0, 33.0, 80.0}) {
        const Dataset::Split split = data.split(percentage, seed);
        EXPECT_EQ(split.held_out.rows(),
                  uint64_t(std::ceil(double(data.rows()) * percentage / 100)));
        EXPECT_EQ(split.kept.rows() + split.held_out.rows(), data.rows());
        std::vector<std::string> all = texts_of(split.kept), held = texts_of(split.held_out);
        if (percentage == 33.0) choices.insert(held);
        all.insert(all.end(), held.begin(), held.end());
        EXPECT_EQ(std::set(all.begin(), all.end()).size(), data.rows());
        EXPECT_EQ(data.split(percentage, seed).kept.fingerprint(), split.kept.fingerprint());
        EXPECT_NE(split.kept.fingerprint(), data.fingerprint());
      }
    }
    EXPECT_GT(choices.size(), 1u);  // the seed matters
  }
}

TEST_F(DatasetPartsTest, SplitsOffTheEndOfEachFile) {
  const std::vector files = {write("a.csv", 40, {"yes", "no"}), write("b.csv", 1, {"yes"}),
                             write("c.csv", 2, {"no"}), write("d.csv", 57, {"yes", "no"})};
  const Dataset data = Dataset::open(files, tokenizer_, options());
  for (const double percentage : {0.5, 5.0, 33.0, 60.0}) {
    const std::optional<Dataset::Split> split = data.split_ends(percentage);
    ASSERT_TRUE(split);
    EXPECT_EQ(split->held_out.rows(), uint64_t(std::ceil(percentage)));  // there are 100 rows
    EXPECT_EQ(split->kept.rows() + split->held_out.rows(), data.rows());
    std::vector<uint64_t> kept(files.size()), held(files.size());
    for (uint64_t row = 0; row < split->kept.rows(); ++row) ++kept[split->kept.origin(row).source];
    for (uint64_t row = 0; row < split->held_out.rows(); ++row) {
      const Dataset::Origin origin = split->held_out.origin(row);
      ++held[origin.source];
      EXPECT_GE(origin.number, kept[origin.source]) << "not behind all that are kept";
    }
    EXPECT_TRUE(std::ranges::all_of(kept, [](uint64_t rows) { return rows > 0; }));
    EXPECT_EQ(held[0], uint64_t(std::ceil(0.4 * percentage)));
    EXPECT_EQ(held[1], 0u) << "a single row stays";
    std::vector<std::string> all = texts_of(split->kept);
    for (const std::string& text : texts_of(split->held_out)) all.push_back(text);
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), data.rows());
    const MixturePart parts[] = {{2, 0.5}, {1, 0.3}, {1, 0.2}};
    EXPECT_EQ(split->kept.mixed(parts, ~uint64_t{0}).shares().size(), 3u);
  }
  EXPECT_FALSE(data.split_ends(0));
  EXPECT_FALSE(data.part(40, 1).split_ends(50));
}

TEST_F(DatasetPartsTest, KeepsTheWindowsOfATextTogether) {
  std::vector<size_t> words;
  for (size_t i = 0; i < 300; ++i) words.push_back(1 + i * 7 % 20);
  const Dataset data = windows(words);
  ASSERT_GT(data.rows(), 600u);
  const Dataset::Split split = data.split(20, 4);
  const std::vector<std::string> kept = texts_of(split.kept), held = texts_of(split.held_out);
  EXPECT_EQ(kept.size() + held.size(), words.size());
  std::set<std::string> all(kept.begin(), kept.end());
  for (const std::string& text : held) EXPECT_TRUE(all.insert(text).second);
  EXPECT_NEAR(double(split.held_out.rows()), 0.2 * double(data.rows()), 0.05 * double(data.rows()));

  const std::optional<Dataset::Split> ends = data.split_ends(20);
  ASSERT_TRUE(ends);
  EXPECT_EQ(texts_of(ends->kept).size() + texts_of(ends->held_out).size(), words.size());
  EXPECT_FALSE(ends->held_out.origin(0).number == ends->kept.origin(ends->kept.rows() - 1).number);

  const Dataset first = data.first_texts(10);
  EXPECT_EQ(texts_of(first).size(), 10u);
  uint64_t expected = 0;
  for (size_t i = 0; i < 10; ++i) expected += (words[i] + 2) / 3;
  EXPECT_EQ(first.rows(), expected);
  EXPECT_EQ(data.first_texts(1'000'000).rows(), data.rows());
}

TEST_F(DatasetPartsTest, DrawsFromFilesInTheirShares) {
  const std::vector files = {write("a.csv", 100, {"yes", "no"}), write("b.csv", 37, {"yes"}),
                             write("c.csv", 10, {"no"})};
  const Dataset all = Dataset::open(files, tokenizer_, options());
  const MixturePart parts[] = {{2, 0.7}, {1, 0.3}};
  const Dataset data = all.mixed(parts, all.rows());
  ASSERT_EQ(data.epoch_examples(), 147u);
  ASSERT_EQ(data.shares().size(), 2u);
  EXPECT_EQ(data.shares()[0].draws, 103u);  // of 102.9
  EXPECT_EQ(data.shares()[1].draws, 44u);   // of 44.1
  std::map<uint64_t, uint64_t> draws;
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const EpochOrder order(data, 42, epoch);
    uint64_t of_c = 0;
    for (uint64_t i = 0; i < data.epoch_examples(); ++i) {
      const uint64_t row = order(i);
      of_c += row >= 137;
      ++draws[row];
    }
    EXPECT_EQ(of_c, 44u);
  }
  // 5 * 103 = 3 * 137 + 104 draws of the first two, 220 = 22 * 10 of the third.
  for (uint64_t row = 0; row < 137; ++row) EXPECT_TRUE(draws[row] == 3 || draws[row] == 4) << row;
  for (uint64_t row = 137; row < 147; ++row) EXPECT_EQ(draws[row], 22u);

  const Dataset few = all.mixed(parts, 20);
  EXPECT_EQ(few.epoch_examples(), 20u);
  const EpochOrder order(few, 42, 3);
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t row = order(i);
    EXPECT_TRUE(row < 14 || (row >= 137 && row < 143)) << row;  // the first 14 and the first 6
  }
}

// Every row once an epoch, also where the stream starts anew in the middle.
TEST_F(DatasetPartsTest, AStreamVisitsEveryRowOnceAcrossRestarts) {
  const std::vector files = {write("a.csv", 1000, {"yes", "no"}), write("b.csv", 501, {"yes"})};
  const Dataset whole = Dataset::open(files, tokenizer_, options());
  const Dataset::Split split = whole.split(10, 7);
  const Dataset& data = split.kept;
  uint64_t expected = 0;
  for (uint64_t row = 0; row < data.rows(); ++row) expected += mix64(row);
  BatchOptions batches{.batch_size = 16, .capacity_tokens = 64};
  const uint64_t steps = steps_per_epoch(data.rows(), batches.batch_size);
  std::vector<uint64_t> sums(3);
  for (uint64_t first = 0; first < 3 * steps; first = batches.last_step) {
    batches.first_step = first;
    batches.last_step = std::min(first + 31, 3 * steps);
    BatchStream stream(data, batches);
    for (const StepBatch* step = nullptr; stream.next(step);) {
      sums[step->epoch] += step->rows_checksum;
    }
  }
  for (const uint64_t sum : sums) EXPECT_EQ(sum, expected);
}

TEST_F(DatasetPartsTest, AMixedStreamIsTheSameFromAnyStep) {
  const std::vector files = {write("a.csv", 50, {"yes", "no"}), write("b.csv", 7, {"yes"})};
  const MixturePart parts[] = {{1, 1}, {1, 1}};
  const Dataset data = Dataset::open(files, tokenizer_, options()).mixed(parts, ~uint64_t{0});
  const auto sums = [&](uint64_t first) {
    std::vector<uint64_t> result;
    BatchStream stream(
        data, {.batch_size = 64, .capacity_tokens = 64, .first_step = first, .last_step = 6});
    for (const StepBatch* step = nullptr; stream.next(step);) result.push_back(step->rows_checksum);
    return result;
  };
  const std::vector<uint64_t> all = sums(0);
  ASSERT_EQ(all.size(), 6u);
  for (uint64_t first = 0; first < 6; ++first) {
    EXPECT_EQ(sums(first), std::vector<uint64_t>(all.begin() + ptrdiff_t(first), all.end()));
  }
}

}  // namespace
}  // namespace snug
