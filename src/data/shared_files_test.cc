// The public data sets beside the checkout, every row of each, with their traps: byte order marks,
// no header, stray quotes.
#include "data/test_support.h"

namespace snug {
namespace {

struct Count {
  const char* file;
  size_t rows;
  size_t ones;  // rows with the label "1"
  RowReaderOptions options{};
  const char* read_as = nullptr;  // the name that says the format, where the file's does not
};

class SharedFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (data_.empty()) GTEST_SKIP() << "no shared data";
  }
  std::filesystem::path data_ = shared_data();
};

TEST_F(SharedFiles, TablesAreReadAsTheyCome) {
  const RowReaderOptions unlabelled{.labels = LabelNeed::kOptional};
  const RowReaderOptions cola{.columns = {.text = "#4", .label = "#2"}, .has_header = false};
  const Count counts[] = {
      {"sst2/train.tsv", 67349, 37569},
      {"sst2/dev.tsv", 872, 444},
      {"sst2/test.tsv", 1821, 0, unlabelled},
      {"mrpc/train.tsv", 3668, 2474},
      {"mrpc/dev.tsv", 408, 279},
      {"mrpc/test.tsv", 1725, 0, unlabelled},
      {"mrpc/msr_paraphrase_test.txt", 1725, 1147, {}, "msr_paraphrase_test.tsv"},
      {"cola/train.tsv", 8551, 6023, cola},
      {"cola/dev.tsv", 1043, 721, cola},
      {"cola/test.tsv", 1063, 0, unlabelled},
      {"stsb/train.tsv", 5749, 125},
      {"stsb/dev.tsv", 1500, 7},
      {"stsb/test.tsv", 1379, 0, unlabelled},
      {"clinc150/train.tsv", 15100, 0},
      {"clinc150/dev.tsv", 3100, 0},
      {"clinc150/test.tsv", 5500, 0},
      {"tiny-shakespeare/input.txt", 40000, 0, unlabelled},
      {"wikitext-2/valid.txt", 3760, 0, unlabelled},
  };
  for (const Count& count : counts) {
    const std::filesystem::path path = data_ / count.file;
    const auto reader =
        open_rows(file_source(path), count.read_as ? count.read_as : path.string(), count.options);
    size_t rows = 0, ones = 0;
    const bool pairs = !reader->columns().text_pair.empty();
    for (Row row; reader->next(row); ++rows) {
      ones += row.label == "1";
      EXPECT_EQ(row.text_pair.has_value(), pairs);
      EXPECT_EQ(row.label.has_value(), !reader->columns().label.empty());
    }
    EXPECT_EQ(rows, count.rows) << count.file;
    EXPECT_EQ(ones, count.ones) << count.file;
    EXPECT_EQ(pairs, path.string().find("mrpc") != std::string::npos ||
                         path.string().find("stsb") != std::string::npos);
  }
}

TEST_F(SharedFiles, ScoresOfStsB) {
  const auto reader = open_rows(data_ / "stsb/train.tsv", {});
  EXPECT_EQ(reader->columns().text, "sentence1");
  EXPECT_EQ(reader->columns().text_pair, "sentence2");
  EXPECT_EQ(reader->columns().label, "score");
  for (Row row; reader->next(row);) {
    const double score = std::stod(std::string(*row.label));
    ASSERT_TRUE(score >= 0 && score <= 5) << row.line;
  }
}

TEST_F(SharedFiles, WordsOfWikiGold) {
  const auto reader = open_rows(data_ / "wikigold/wikigold.conll.txt", {.kind = RowKind::kWords});
  size_t sentences = 0, words = 0;
  for (Row row; reader->next(row); ++sentences) {
    words += row.words.size();
    for (const Word& word : row.words) {
      ASSERT_TRUE(word.label == "O" || word.label.starts_with("I-")) << row.line;
    }
  }
  EXPECT_EQ(sentences, 1696u);
  EXPECT_EQ(words, 39007u);
}

TEST_F(SharedFiles, AnswersOfSquadAreWhereTheyAreSaidToBe) {
  for (const auto& [file, questions] :
       {std::pair{"squad-v1.1/train.json", 7825u}, {"squad-v1.1/dev.json", 1341u}}) {
    const auto reader = open_rows(data_ / file, {.kind = RowKind::kQuestions});
    size_t rows = 0, answers = 0;
    for (Row row; reader->next(row); ++rows) {
      EXPECT_FALSE(row.answers.empty() || row.id.empty() || row.text.empty());
      answers += row.answers.size();
    }
    EXPECT_EQ(rows, questions);
    EXPECT_GT(answers, 3 * rows);
  }
}

}  // namespace
}  // namespace snug
