// Documents joined into blocks, and the batches made of them.
#include <map>
#include <random>

#include "core/progress.h"
#include "data/batches.h"
#include "data/test_support.h"

namespace snug {
namespace {

class DocumentsTest : public testing::Test {
 protected:
  DocumentsTest() { set_quiet(true); }

  Dataset open(const std::string& name, const std::string& contents, size_t block,
               const DocumentOptions& documents) {
    return Dataset::open(folder_.write(name, contents), tokenizer_,
                         {.labels = LabelNeed::kIgnored,
                          .encoding = {.max_length = block},
                          .cache_folder = folder_.path(),
                          .documents = documents});
  }
  static std::vector<int32_t> all_ids(const Dataset& data) {
    std::vector<int32_t> ids;
    RowByRow rows(data);
    for (uint64_t row = 0; row < data.rows(); ++row) {
      const Example& example = rows.read(row);
      ids.insert(ids.end(), example.ids.begin(), example.ids.end());
    }
    return ids;
  }
  std::vector<int32_t> encoded(const std::string& text) const {
    Encoding out;
    tokenizer_.encode(text, std::nullopt, {}, out);
    return out.ids;
  }

  TemporaryFolder folder_;
  FakeTokenizer tokenizer_{1000, /*specials=*/false};
};

std::string words(int count, int seed) {
  std::mt19937 random{unsigned(seed)};
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += (i ? (i % 7 ? " " : "\n") : "") + std::string("w") + std::to_string(random() % 500);
  }
  return text;
}

TEST_F(DocumentsTest, APlainTextIsOneDocumentWithoutLoss) {
  const std::string text = words(30'000, 1);  // more than one piece of the reader
  const Dataset data = open("a.txt", text, 100, {.separator = 2});
  auto expected = encoded(text);
  expected.push_back(2);
  EXPECT_EQ(all_ids(data), expected);
  EXPECT_EQ(data.rows(), 301u);
  EXPECT_EQ(data.longest(), 100u);
  EXPECT_EQ(data.tokens(), 30'001u);
}

TEST_F(DocumentsTest, RowsAreDocumentsWithASeparatorBehindEach) {
  std::string jsonl;
  std::vector<int32_t> expected;
  for (int i = 0; i < 50; ++i) {
    std::string text = i == 7 ? "" : words(i, i);
    std::replace(text.begin(), text.end(), '\n', ' ');
    jsonl += "{\"text\": \"" + text + "\"}\n";
    const auto ids = encoded(text);
    expected.insert(expected.end(), ids.begin(), ids.end());
    if (!ids.empty()) expected.push_back(2);
  }
  const Dataset data = open("a.jsonl", jsonl, 64, {.separator = 2});
  EXPECT_EQ(all_ids(data), expected);
  EXPECT_EQ(data.separator(), 2);
  EXPECT_GT(data.most_sequences(), 2u);
  EXPECT_EQ(
      open("a.jsonl", jsonl, 64, {.separator = 2, .attention_crosses = true}).most_sequences(), 1u);
  // Each document a row of its own, its end marked; two are empty.
  const Dataset whole = open("a.jsonl", jsonl, 64, {.joined = false, .separator = 2});
  EXPECT_EQ(whole.rows(), 48u);
  EXPECT_EQ(RowByRow(whole).read(18).ids.size(), 21u);
  EXPECT_EQ(all_ids(whole), expected);
  // Or several, of which the last has the end.
  const Dataset pieces = open("a.jsonl", jsonl, 8, {.joined = false, .separator = 2});
  EXPECT_GT(pieces.rows(), 100u);
  EXPECT_EQ(pieces.longest(), 8u);
  EXPECT_EQ(all_ids(pieces), expected);
}

TEST_F(DocumentsTest, EveryTokenIsSeenOncePerEpochAndPredictsItsNext) {
  std::string jsonl;
  for (int i = 0; i < 40; ++i) {
    std::string text = words(1 + i % 23, i);
    std::replace(text.begin(), text.end(), '\n', ' ');
    jsonl += "{\"text\": \"" + text + "\"}\n";
  }
  const Dataset data = open("b.jsonl", jsonl, 32, {.separator = 2});
  BatchOptions options;
  options.batch_size = 3;
  options.capacity_tokens = 70;
  options.token_task = TokenTask::kNextWord;
  options.last_step = steps_per_epoch(data.rows(), 3);
  std::map<int32_t, int> seen, expected;
  for (const int32_t id : all_ids(data)) ++expected[id];
  BatchStream stream(data, options);
  for (const StepBatch* step = nullptr; stream.next(step);) {
    uint64_t targets = 0;
    for (const MicroBatch& micro : step->micro_batches) {
      EXPECT_LE(micro.ids.size(), 70u);
      targets += micro.target_rows.size();
      size_t target = 0;
      for (size_t s = 0; s + 1 < micro.starts.size(); ++s) {
        for (int32_t t = micro.starts[s]; t < micro.starts[s + 1]; ++t) {
          ++seen[micro.ids[size_t(t)]];
          EXPECT_EQ(micro.positions[size_t(t)], t - micro.starts[s]);
          EXPECT_EQ(micro.row_of[size_t(t)], int32_t(s));
          const bool last = t + 1 == micro.starts[s + 1];
          if (micro.ids[size_t(t)] == 2) {
            EXPECT_TRUE(last) << "a document ends its sequence";
          }
          if (last) continue;
          ASSERT_LT(target, micro.target_rows.size());
          EXPECT_EQ(micro.target_rows[target], t);
          EXPECT_EQ(micro.target_ids[target++], micro.ids[size_t(t) + 1]);
        }
      }
      EXPECT_EQ(target, micro.target_rows.size());
    }
    EXPECT_EQ(step->targets, targets);
  }
  EXPECT_EQ(seen, expected);
}

// Dropout masks are named by samples: they must not depend on how blocks were packed.
TEST_F(DocumentsTest, SamplesDoNotKnowThePacking) {
  const Dataset data = open("c.txt", words(900, 3), 20, {.separator = 2});
  const auto samples = [&](int64_t capacity) {
    BatchOptions options;
    options.batch_size = 6;
    options.capacity_tokens = capacity;
    options.token_task = TokenTask::kNextWord;
    options.last_step = 5;
    std::map<uint64_t, std::vector<int32_t>> out;
    BatchStream stream(data, options);
    for (const StepBatch* step = nullptr; stream.next(step);) {
      for (const MicroBatch& micro : step->micro_batches) {
        for (size_t s = 0; s < micro.samples.size(); ++s) {
          const auto ids = micro.ids.subspan(size_t(micro.starts[s]),
                                             size_t(micro.starts[s + 1] - micro.starts[s]));
          EXPECT_TRUE(
              out.emplace(micro.samples[s], std::vector<int32_t>(ids.begin(), ids.end())).second);
        }
      }
    }
    return out;
  };
  EXPECT_EQ(samples(20), samples(120));
}

TEST_F(DocumentsTest, PartsOfADataset) {
  const Dataset data = open("d.txt", words(500, 3), 10, {.separator = 2});
  const Dataset end = data.part(40, 11);
  EXPECT_EQ(end.rows(), 11u);
  EXPECT_EQ(RowByRow(end).read(3).ids, RowByRow(data).read(43).ids);
  EXPECT_EQ(RowByRow(end).read(10).ids, RowByRow(data).read(50).ids);
}

TEST_F(DocumentsTest, WhatIsNoTextIsRefused) {
  EXPECT_NE(error_of([&] { open("e.txt", "", 10, {}); }).find("no rows"), std::string::npos);
  EXPECT_NE(
      error_of([&] { open("f.txt", std::string("ab\0cd efgh", 10), 10, {}); }).find("zero bytes"),
      std::string::npos);
  EXPECT_NE(error_of([&] { open("g.txt", "ab\xFF cd", 10, {}); }).find("not UTF-8"),
            std::string::npos);
  EXPECT_NE(error_of([&] { open("h.txt", " \n \n", 10, {}); }).find("empty"), std::string::npos);
}

}  // namespace
}  // namespace snug
