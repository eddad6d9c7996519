// Rows of words: columns and JSON Lines.
#include "data/test_support.h"
#include "data/word_row.h"

namespace snug {
namespace {

using Sentences = std::vector<std::string>;

RowReaderOptions words(LabelNeed labels = LabelNeed::kRequired, Columns columns = {}) {
  return {.kind = RowKind::kWords, .columns = std::move(columns), .labels = labels};
}

// "7: EU/B-ORG rejects/O": the line, words and labels of each row.
Sentences sentences_of(RowReader& reader) {
  Sentences out;
  for (Row row; reader.next(row);) {
    out.push_back(std::to_string(row.line) + ":");
    size_t end = 0;
    for (const Word& word : row.words) {
      EXPECT_EQ(word.begin, &word == row.words.data() ? 0 : end + 1);
      end = word.end;
      out.back() += " " + std::string(row.text.substr(word.begin, word.end - word.begin));
      if (!word.label.empty()) out.back() += "/" + std::string(word.label);
    }
    EXPECT_EQ(row.text.size(), end);
    EXPECT_FALSE(row.text_pair || row.label || row.continues);
  }
  return out;
}

Sentences parse(std::string_view bytes, const std::string& name,
                const RowReaderOptions& options = words()) {
  return sentences_of(*open_rows(memory_source(bytes), name, options));
}

TEST(Conll, TakesTheFirstColumnAsWordAndTheLastAsTag) {
  const Sentences expected{"1: EU/B-ORG rejects/O", "4: Peter/B-PER Blackburn/I-PER"};
  EXPECT_EQ(parse("EU B-ORG\nrejects O\n\nPeter B-PER\nBlackburn I-PER\n", "x.conll"), expected);
  EXPECT_EQ(
      parse("EU\tNNP\tB-ORG\nrejects\tVBZ\tO\n\nPeter\tNNP\tB-PER\nBlackburn\tNNP\tI-PER", "x.tsv"),
      expected);
  EXPECT_EQ(
      parse("EU NNP B-ORG \n rejects   VBZ\t O\n \t\nPeter NNP B-PER\nBlackburn NNP I-PER\n\n\n",
            "x.txt"),
      expected);
  EXPECT_EQ(parse("\xEF\xBB\xBF"
                  "EU B-ORG\r\nrejects O\r\n\r\nPeter B-PER\r\nBlackburn I-PER\r\n",
                  "X.BIO"),
            expected);
  EXPECT_EQ(parse("EU B-ORG\rrejects O\r\rPeter B-PER\rBlackburn I-PER", "x.iob"), expected);
}

TEST(Conll, SkipsMarksOfDocumentsAndCommentsOfCoNllU) {
  EXPECT_EQ(parse("-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n-DOCSTART- -X- O O\nrejects VBZ I-VP "
                  "O\n\n-DOCSTART-\n",
                  "x.txt"),
            (Sentences{"3: EU/I-ORG", "5: rejects/O"}));
  EXPECT_EQ(parse("# sent_id = 1\n# text = EU #\nEU\tB-ORG\n# more\n#\tO\n\n# x\n\nrejects\tO\n",
                  "x.conll"),
            (Sentences{"3: EU/B-ORG #/O", "9: rejects/O"}));
  // Where spaces separate columns, what begins with # is a word: comments cannot be told from it.
  EXPECT_EQ(parse("# O\n1 O\n-DOCSTART O\n", "x.conll"), (Sentences{"1: #/O 1/O -DOCSTART/O"}));
  // Tabs separate columns, so words may hold spaces.
  EXPECT_EQ(parse("New York \tB-LOC\n\xC2\xA0\tO\n", "x.tsv"),
            (Sentences{"1: New York/B-LOC \xC2\xA0/O"}));
}

TEST(Conll, ReadsOtherColumnsByNumber) {
  const std::string germeval =
      "# http://de.wikipedia.org\n1\tAufgrund\tO\tO\n2\tBerlin\tB-LOC\tB-X\n";
  EXPECT_EQ(parse(germeval, "x.tsv", words(LabelNeed::kRequired, {.text = "#2", .label = "3"})),
            (Sentences{"2: Aufgrund/O Berlin/B-LOC"}));
  const auto reader = open_rows(memory_source(germeval), "x.tsv",
                                words(LabelNeed::kRequired, {.text = "#2", .text_pair = "-"}));
  EXPECT_EQ(reader->columns().text, "#2");
  EXPECT_EQ(reader->columns().label, "#4");
  EXPECT_EQ(reader->columns().text_pair, "");
}

TEST(Conll, NeedsNoTagsWhereLabelsAreNotRequired) {
  for (const LabelNeed need : {LabelNeed::kOptional, LabelNeed::kIgnored}) {
    EXPECT_EQ(parse("EU\nrejects\n\nGerman\n", "x.txt", words(need)),
              (Sentences{"1: EU rejects", "4: German"}));
  }
  EXPECT_EQ(parse("EU B-ORG\nrejects\n", "x.txt", words(LabelNeed::kOptional)),
            (Sentences{"1: EU/B-ORG rejects"}));
  EXPECT_EQ(parse("EU\tB-ORG\nrejects\t\n", "x.txt", words(LabelNeed::kOptional)),
            (Sentences{"1: EU/B-ORG rejects"}));
  EXPECT_EQ(parse("EU B-ORG\nrejects\n", "x.txt", words(LabelNeed::kIgnored)),
            (Sentences{"1: EU rejects"}));
}

TEST(JsonWords, ReadsListsOfWordsAndTags) {
  EXPECT_EQ(parse(R"({"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"], "pos_tags": [1, 2]})"
                  "\n\n"
                  R"({"ner_tags": [3, -100, 0], "id": 1, "tokens": ["a", "", "New York"]})"
                  "\n"
                  R"({"tokens": [], "ner_tags": []})",
                  "x.jsonl"),
            (Sentences{"1: EU/B-ORG rejects/O", "3: a/3  New York/0", "4:"}));
  EXPECT_EQ(parse(R"({"words": ["a"], "labels": ["X"]})", "x.json"), (Sentences{"1: a/X"}));
  EXPECT_EQ(parse(R"({"w": ["a"], "pos": ["DT"]})", "x.json",
                  words(LabelNeed::kRequired, {.text = "w", .label = "pos"})),
            (Sentences{"1: a/DT"}));
  const std::string some = R"({"tokens": ["a"], "tags": null})"
                           "\n"
                           R"({"tokens": ["a", "b"]})"
                           "\n"
                           R"({"tokens": ["a", "b"], "tags": [null, "O"]})";
  EXPECT_EQ(parse(some, "x.jsonl", words(LabelNeed::kOptional)),
            (Sentences{"1: a", "2: a b", "3: a b/O"}));
  EXPECT_EQ(parse(some, "x.jsonl", words(LabelNeed::kIgnored)),
            (Sentences{"1: a", "2: a b", "3: a b"}));
}

struct BadInput {
  const char* name;
  std::string contents;
  const char* expected;
};

TEST(Words, RefusesBadInputWithTheLine) {
  const std::vector<BadInput> cases = {
      {"x.conll", "", "no words"},
      {"x.conll", "\n \n-DOCSTART- O\n\n", "no words"},
      {"x.conll", "\nEU\nrejects\n", "line 2: one column, \"EU\"; expected a word and its tag"},
      {"x.conll", "EU B-ORG\n\nGerman NNP O\n",
       "line 3: 3 columns, expected 2 as in line 1, separated by spaces"},
      {"x.conll", "EU NNP B-ORG\nrejects O\n", "line 2: 2 columns, expected 3 as in line 1"},
      {"x.conll", "EU\tB-ORG\nrejects O\n",
       "line 2: 1 column, expected 2 as in line 1, separated by tabs"},
      {"x.conll", "EU\tB-ORG\n\tO\n", "line 2: the word is empty"},
      {"x.conll", "EU\tNNP\tB-ORG\na\t\tO\n\nb\t\n", "line 4: 1 column, expected 3"},
      {"x.conll", "EU B-ORG\nab\xFF O\n", "line 2, byte 3: not UTF-8 (0xff)"},
      {"x.conll", "a" + std::string(20'000, '\t') + "O\n", "line 1: more than 10000 columns"},
      {"x.conll.gz", "EU B-ORG\n", "damaged gzip data"},
      {"x.csv", "tokens,tags\na,O\n",
       "unknown format for words with tags; expected a name in one of .conll, .bio, .iob, .txt, "
       ".tsv, .jsonl, .json"},
      {"x.jsonl", "\n", "no rows"},
      {"x.jsonl", R"({"text": "a"})", "no words column by a usual name (tokens, words)"},
      {"x.jsonl", R"({"tokens": ["a"]})",
       "no tags column by a usual name (ner_tags, tags, ...); the columns are \"tokens\""},
      {"x.jsonl", R"({"tokens": "a b", "tags": ["O"]})",
       "line 1: \"tokens\" is a string, expected a list"},
      {"x.jsonl", R"({"tokens": ["a"], "tags": "O"})",
       "line 1: \"tags\" is a string, expected a list"},
      {"x.jsonl", R"({"tokens": ["a", "b"], "tags": ["O"]})",
       "line 1: 2 words in \"tokens\", but 1 tags in \"tags\""},
      {"x.jsonl", R"({"tokens": ["a", 5], "tags": ["O", "O"]})",
       "line 1: word 2 of \"tokens\" is a number, expected a string"},
      {"x.jsonl", R"({"tokens": ["a"], "tags": [1.5]})",
       "line 1: tag 1 of \"tags\" is a number, expected a string or an integer"},
      {"x.jsonl", R"({"tokens": ["a"], "tags": [true]})", "line 1: tag 1 of \"tags\" is a boolean"},
      {"x.jsonl", R"({"tokens": ["a"], "tags": [""]})", "line 1: tag 1 of \"tags\" is empty"},
      {"x.jsonl", R"({"tokens": ["a"], "tags": [null]})", "line 1: tag 1 of \"tags\" is null"},
      {"x.jsonl", "{\"tokens\": [\"a\"], \"tags\": [\"O\"]}\n{\"tokens\": [\"a\"]}",
       "line 2: no \"tags\"; expected a list of tags"},
      {"x.jsonl", "{\"tokens\": [\"a\"], \"tags\": [\"O\"]}\n{\"tags\": [\"O\"]}",
       "line 2: no \"tokens\"; expected a list"},
      {"x.jsonl", R"({"tokens": ["a"], "tokens": ["b"], "tags": ["O"]})",
       "line 1: key \"tokens\" appears twice"},
  };
  for (const BadInput& bad : cases) {
    const std::string error = error_of([&] { parse(bad.contents, bad.name); });
    EXPECT_TRUE(error.starts_with(std::string("3: ") + bad.name)) << error;
    EXPECT_NE(error.find(bad.expected), error.npos) << error << "\nexpected: " << bad.expected;
  }
  const auto with = [](Columns columns) { return words(LabelNeed::kRequired, std::move(columns)); };
  const auto error_with = [&](Columns columns) {
    return error_of([&] { parse("EU O\n", "x.conll", with(columns)); });
  };
  EXPECT_EQ(error_with({.label = "#3"}),
            "3: x.conll: no column \"#3\" for the tags; the columns are \"#1\", \"#2\"");
  EXPECT_EQ(error_with({.text = "tokens"}),
            "3: x.conll: no column \"tokens\" for the words; the columns are \"#1\", \"#2\"");
  EXPECT_NE(error_with({.text = "#2"}).find("asked for twice"), std::string::npos);
  EXPECT_NE(error_with({.text_pair = "#2"}).find("no second text"), std::string::npos);
}

TEST(Conll, EndsSentencesThatNeverEnd) {
  RowReaderOptions small = words();
  small.max_record_bytes = 1000;
  std::string endless;
  for (int i = 0; i < 1000; ++i) endless += "word O\n";
  EXPECT_EQ(error_of([&] { parse("a O\n\n" + endless, "x.conll", small); }),
            "3: x.conll: line 169: the sentence that begins at line 3 has not ended after 167 "
            "words; a blank line ends a "
            "sentence");
  EXPECT_NE(error_of([&] {
              parse("a O\n" + std::string(2000, 'b') + " O\n", "x.conll", small);
            }).find("line 2: not finished after 1000 bytes"),
            std::string::npos);
  // Comments in front of everything cost no more than a record.
  std::string comments;
  for (int i = 0; i < 1000; ++i) comments += "# comment\n";
  EXPECT_EQ(parse(comments + "a\tO\n", "x.conll"), (Sentences{"1001: a/O"}));
}

TEST(Words, ManySentencesTakeNoMoreMemory) {
  std::string conll;
  for (int i = 0; i < 100'000; ++i) conll += "word\tB-LOC\nother\tO\n\n";
  const auto reader = open_rows(memory_source(conll), "x.conll", words());
  Row row;
  ASSERT_TRUE(reader->next(row));
  const size_t before = allocated_bytes();
  size_t rows = 1;
  while (reader->next(row)) ++rows;
  EXPECT_EQ(rows, 100'000u);
  EXPECT_LT(allocated_bytes() - before, 1000u);
}

}  // namespace
}  // namespace snug
