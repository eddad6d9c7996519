#include "data/skipped_rows.h"

#include "core/file.h"
#include "core/progress.h"
#include "data/dataset.h"
#include "data/row_files.h"
#include "data/test_support.h"

namespace snug {
namespace {

struct Case {
  const char* name;
  RowKind kind;
  std::string contents;
  std::vector<std::string> texts;    // of the rows that are right
  std::vector<std::string> reasons;  // of the others
};

std::vector<Case> cases() {
  return {
      {"columns.csv",
       RowKind::kTexts,
       "text,label\na,0\nb\nc,1,2\nd,1\n",
       {"a", "d"},
       {"line 3: 1 column", "line 4: 3 columns"}},
      {"utf8.csv",
       RowKind::kTexts,
       "text,label\na,0\n\xff\xfe,1\nd,1\n",
       {"a", "d"},
       {"line 3, byte 1: not UTF-8"}},
      {"quotes.csv",
       RowKind::kTexts,
       "text,label\n\"a\nb\",0\n\"c\"x,1\nd,1\n",
       {"a\nb", "d"},
       {"line 4: text after the closing quote"}},
      {"unclosed.csv",
       RowKind::kTexts,
       "text,label\na,0\n\"b,1\nc,1\nd,0\n",
       {"a", "c", "d"},
       {"line 3: a quote opens that is never closed"}},
      {"last.csv",
       RowKind::kTexts,
       "text,label\na,0\n\"b,1",
       {"a"},
       {"line 3: a quote opens that is never closed"}},
      {"lines.tsv",
       RowKind::kTexts,
       "text\tlabel\na\t0\nb\n\xc0\t1\nd\t1\n",
       {"a", "d"},
       {"line 3: 1 column", "line 4, byte 1: not UTF-8"}},
      {"objects.jsonl",
       RowKind::kTexts,
       "{\"text\": \"a\", \"label\": 0}\n{\"text\": 1, \"label\": 0}\n{\"text\"\n[1]\n{\"text\": "
       "\"e\", \"label\": 1}\n{\"text\": \"f\", \"labe",
       {"a", "e"},
       {"line 2: \"text\" is a number", "line 3: the object does not end", "line 4: a JSON array",
        "line 6: the object does not end"}},
      {"words.conll",
       RowKind::kWords,
       "a O\nb O\n\nc O\nd\ne O\n\nf O\n",
       {"a b", "f"},
       {"line 5: 1 column"}},
      {"questions.json",
       RowKind::kQuestions,
       R"({"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "x", "answers": [{"text": "a", "answer_start": 0}]},
        {"id": "2", "question": 7, "answers": []}, {"id": "3", "question": "z", "answers": [{"text": "b", "answer_start": 2}]}]},
        {"context": 5, "qas": []}, {"context": "c", "qas": [{"id": "4", "question": "v", "answers": [{"text": "c", "answer_start": 0}]}]}]}]})",
       {"x", "z", "v"},
       {"question", "context"}},
  };
}

TEST(SkippedRows, AreLeftOutByEveryReader) {
  for (const Case& test : cases()) {
    SkippedRows skipped;
    RowStream rows(open_rows(memory_source(test.contents), test.name, {.kind = test.kind}),
                   test.name, &skipped);
    std::vector<std::string> texts;
    for (Row row; rows.next(row);) texts.emplace_back(row.text);
    EXPECT_EQ(texts, test.texts) << test.name;
    EXPECT_EQ(skipped.count(), test.reasons.size()) << test.name;
    for (size_t i = 0; i < std::min(skipped.first().size(), test.reasons.size()); ++i) {
      EXPECT_NE(skipped.first()[i].find(test.reasons[i]), std::string::npos)
          << test.name << ": " << skipped.first()[i];
    }
    EXPECT_EQ(rows.number() + 1, test.texts.size() + test.reasons.size()) << test.name;
  }
}

TEST(SkippedRows, AreCountedInWords) {
  EXPECT_EQ(skipped_rows_text("2 files", 1), "2 files: 1 row is wrong and left out");
  EXPECT_EQ(skipped_rows_text("a.csv", 3), "a.csv: 3 rows are wrong and left out");
}

TEST(SkippedRows, AreSaidWithTheirPlace) {
  const Error error(ErrorKind::kInput, "too long", "cut it");
  EXPECT_STREQ(with_place(error, "x.csv", {.line = 7}).what(), "x.csv: line 7: too long");
  const Error placed = with_place(error, "x.json", {.line = 1, .id = "q1"});
  EXPECT_STREQ(placed.what(), "x.json: line 1: question \"q1\": too long");
  EXPECT_EQ(placed.hint(), "cut it");
}

TEST(SkippedRows, ListTheLineOfAQuoteThatIsNeverClosed) {
  const TemporaryFolder folder;
  SkippedRows skipped(folder.path() / "skipped.jsonl");
  RowStream rows(open_rows(memory_source("text,label\na,0\n\"b,1\nc,1\n"), "x.csv", {}), "x.csv",
                 &skipped);
  for (Row row; rows.next(row);) {
  }
  skipped.commit();
  const std::string list = read_small_file(folder.path() / "skipped.jsonl");
  EXPECT_TRUE(list.starts_with(R"({"file":"x.csv","line":3,"reason":)")) << list;
}

// Where the rest of a file cannot be read, there is nothing to go on with.
TEST(SkippedRows, DoNotHideABrokenFile) {
  const std::string broken_squad =
      R"({"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": "x", "answers": []}]}, {"conte)";
  const std::string gz = gzipped("text,label\n" + std::string(100'000, 'a') + ",0\nb,1\n");
  const struct {
    std::string name, contents;
    RowKind kind;
  } broken[] = {{"x.csv.gz", gz.substr(0, gz.size() - 20), RowKind::kTexts},
                {"x.json", broken_squad, RowKind::kQuestions}};
  for (const auto& test : broken) {
    SkippedRows skipped;
    const std::string error = error_of([&] {
      RowStream rows(open_rows(memory_source(test.contents), test.name, {.kind = test.kind}),
                     test.name, &skipped);
      for (Row row; rows.next(row);) {
      }
    });
    EXPECT_NE(error, "no error") << test.name;
    EXPECT_LE(skipped.count(), 1u);
  }
}

class SkippingDatasetTest : public ::testing::Test {
 protected:
  SkippingDatasetTest() { set_quiet(true); }
  DatasetOptions options() const {
    return {.cache_folder = folder_.path() / "cache", .threads = 2, .skip_bad_rows = true};
  }

  TemporaryFolder folder_;
  FakeTokenizer tokenizer_;
};

TEST_F(SkippingDatasetTest, CountsAndListsWhatReadersLabelsAndTokenizersRefuse) {
  const auto file = folder_.write("x.csv",
                                  "text,label\nfirst row,yes\nno label,\nthe snug-explodes "
                                  "here,odd\nonly one column\nlast row,no\n"
                                  "fraction,1.5\nmore,yes\n");
  for (const bool again : {false, true}) {  // from the cache, it says the same
    const Dataset data = Dataset::open(file, tokenizer_, options());
    EXPECT_EQ(data.rows(), 3u) << again;
    EXPECT_EQ(data.skipped_rows(), 4u);
    EXPECT_EQ(data.label_counts(), (std::vector<uint64_t>{1, 0, 2}));
    ASSERT_EQ(data.skipped_lists().size(), 1u);
    const std::string list = read_small_file(data.skipped_lists()[0]);
    for (const char* line :
         {"\"line\":3,\"reason\":\"the label is empty", "\"line\":5,\"reason\":\"1 column",
          "\"line\":7,\"reason\":\"label \\\"1.5\\\"",
          "\"line\":4,\"reason\":\"tokenizer: the snug-explodes"}) {
      EXPECT_NE(list.find(line), list.npos) << line << " in\n" << list;
    }
    // Evaluation reads the same rows from the file.
    RowFiles rows(data, {});
    std::vector<std::string> texts;
    for (Row row; rows.next(row);) texts.emplace_back(row.text);
    EXPECT_EQ(texts, (std::vector<std::string>{"first row", "last row", "more"}));
  }
}

TEST_F(SkippingDatasetTest, RefusesAFileWithoutAnyGoodRow) {
  const auto file = folder_.write("x.csv", "text,label\na,\nb\n");
  const std::string error = error_of([&] { Dataset::open(file, tokenizer_, options()); });
  EXPECT_NE(error.find("all 2 rows are wrong; the first: "), error.npos) << error;
  EXPECT_NE(error.find("line 2: the label is empty"), error.npos) << error;
}

TEST_F(SkippingDatasetTest, ForgetsTheLabelsOfAWrongRow) {
  const auto file = folder_.write("x.conll", "a B-X\nb O\n\nc B-NEW\nd 1.5\n\ne O\n");
  DatasetOptions tags = options();
  tags.encoding.labelling = Labelling::kTags;
  tags.encoding.long_texts = LongTexts::kWindows;
  const Dataset data = Dataset::open(file, tokenizer_, tags);
  EXPECT_EQ(data.skipped_rows(), 1u);
  EXPECT_EQ(data.labels().names, (std::vector<std::string>{"B-X", "O"}));
  EXPECT_EQ(data.label_counts(), (std::vector<uint64_t>{1, 2}));
}

}  // namespace
}  // namespace snug
