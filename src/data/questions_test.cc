// Rows of questions: SQuAD's JSON, JSON Lines and tables.
#include "data/code_point_index.h"
#include "data/test_support.h"

namespace snug {
namespace {

using Questions = std::vector<std::string>;

RowReaderOptions questions(LabelNeed labels = LabelNeed::kRequired, Columns columns = {}) {
  return {.kind = RowKind::kQuestions, .columns = std::move(columns), .labels = labels};
}

// "1 [id] question | context | answer@start ..."
Questions questions_of(RowReader& reader) {
  Questions out;
  for (Row row; reader.next(row);) {
    EXPECT_TRUE(row.text_pair && row.words.empty() && !row.label);
    out.push_back(fmt::format("{} [{}] {} | {} |", row.line, row.id, row.text,
                              row.text_pair.value_or("none")));
    for (const Answer& answer : row.answers) {
      out.back() += fmt::format(" {}@{}", answer.text, answer.begin);
    }
  }
  return out;
}

Questions parse(std::string_view bytes, const std::string& name,
                const RowReaderOptions& options = questions()) {
  return questions_of(*open_rows(memory_source(bytes), name, options));
}

// A document of one article with the paragraphs.
std::string squad(const std::string& paragraphs) {
  return R"({"version": "1.1", "data": [{"title": "T", "paragraphs": [)" + paragraphs + "]}]}";
}
std::string paragraph(const std::string& questions) {
  return R"({"context": "A cat sat.", "qas": [)" + questions + "]}";
}

TEST(Squad, ReadsBothVersions) {
  EXPECT_EQ(parse(R"({"data": [{"title": "a", "paragraphs": [
                        {"context": "A cat sat.", "qas": [
                          {"answers": [{"answer_start": 2, "text": "cat"}, {"answer_start": 0, "text": "A cat"}],
                           "question": "Who?", "id": "q1"},
                          {"id": "q2", "question": "When?", "answers": [], "is_impossible": true,
                           "plausible_answers": [{"text": "sat", "answer_start": 99}]}]},
                        {"context": "No question.", "qas": []}]},
                      {"paragraphs": [], "title": "b"}, {"title": "c",
                       "paragraphs": [{"context": "x", "qas": [{"id": 3, "question": "?", "answers": [], "more": {}}]}]}
                     ], "version": "v2.0"})",
                  "x.json"),
            (Questions{"2 [q1] Who? | A cat sat. | cat@2 A cat@0", "2 [q2] When? | A cat sat. |",
                       "9 [3] ? | x |"}));
}

TEST(Squad, TakesFieldsInAnyOrder) {
  EXPECT_EQ(
      parse(
          R"({"data": [{"paragraphs": [{"qas": [{"answers": [{"answer_start": 2, "text": "cat"}], "question": "Who?",
                  "id": "q"}], "context": "A cat sat."}], "title": {"deep": [1, "}]"]}}], "version": "\"}]"})",
          "x.json"),
      (Questions{"1 [q] Who? | A cat sat. | cat@2"}));
}

TEST(Squad, CountsCodePoints) {
  const std::string qas =
      R"([{"id": "1", "question": "q", "answers": [{"text": "🙂 b", "answer_start": 2},
                           {"text": "b", "answer_start": 4}]}])";
  const Questions expected{"1 [1] q | é\u0301🙂 b | 🙂 b@2 b@4"};
  EXPECT_EQ(parse(squad("{\"context\": \"é\u0301🙂 b\", \"qas\": " + qas + "}"), "x.json"),
            expected);
  EXPECT_EQ(
      parse(squad(R"({"context": "\u00e9\u0301\ud83d\ude42 b", "qas": )" + qas + "}"), "x.json"),
      expected);
}

TEST(Squad, NeedsNoAnswersWhereLabelsAreNotRequired) {
  const std::string bare = squad(paragraph(R"({"id": "1", "question": "Who?"})"));
  const std::string wrong = squad(paragraph(
      R"({"id": "1", "question": "Who?", "answers": [{"text": "dog", "answer_start": 2}]})"));
  const Questions expected{"1 [1] Who? | A cat sat. |"};
  EXPECT_EQ(parse(bare, "x.json", questions(LabelNeed::kOptional)), expected);
  EXPECT_EQ(parse(bare, "x.json", questions(LabelNeed::kIgnored)), expected);
  EXPECT_EQ(parse(wrong, "x.json", questions(LabelNeed::kIgnored)), expected);
  EXPECT_NE(error_of([&] { parse(wrong, "x.json", questions(LabelNeed::kOptional)); }), "no error");
}

TEST(Squad, TakesOtherNames) {
  const Columns columns{.text = "q", .text_pair = "text", .label = "gold"};
  EXPECT_EQ(
      parse(
          squad(
              R"({"text": "A cat.", "qas": [{"q": "Who?", "gold": [{"text": "cat", "answer_start": 2}]}]})"),
          "x.json", questions(LabelNeed::kRequired, columns)),
      (Questions{"1 [] Who? | A cat. | cat@2"}));
}

TEST(FlatQuestions, ReadsListsAndObjectsOfAnswers) {
  EXPECT_EQ(
      parse(
          R"({"id": "a", "title": "t", "context": "A cat sat.", "question": "Who?", "answers": {"text": ["cat", "A cat"], "answer_start": [2, 0]}})"
          "\n"
          R"({"answers": [{"text": "sat", "answer_start": 6}], "question": "What?", "context": "A cat sat."})"
          "\n"
          R"({"id": 7, "answers": {"text": [], "answer_start": []}, "question": "When?", "context": "A cat sat."})"
          "\n",
          "x.jsonl"),
      (Questions{"1 [a] Who? | A cat sat. | cat@2 A cat@0", "2 [] What? | A cat sat. | sat@6",
                 "3 [7] When? | A cat sat. |"}));
  EXPECT_EQ(parse(R"({"query": "Who?", "passage": "A cat."})", "x.jsonl",
                  questions(LabelNeed::kOptional)),
            (Questions{"1 [] Who? | A cat. |"}));
  EXPECT_EQ(parse(R"({"q": "Who?", "context": "A cat."})", "x.jsonl",
                  questions(LabelNeed::kIgnored, {.text = "q"})),
            (Questions{"1 [] Who? | A cat. |"}));
}

TEST(QuestionTables, AreReadWithoutAnswers) {
  const Questions expected{"2 [] Who? | A cat, sat. |"};
  for (const LabelNeed need : {LabelNeed::kOptional, LabelNeed::kIgnored}) {
    EXPECT_EQ(parse("question,context,label\nWho?,\"A cat, sat.\",1\n", "x.csv", questions(need)),
              expected);
    EXPECT_EQ(parse("context\tquestion\nA cat, sat.\tWho?\n", "x.tsv", questions(need)), expected);
  }
  EXPECT_EQ(parse("Who?,A cat.", "x.csv",
                  {.kind = RowKind::kQuestions,
                   .columns = {.text = "#1", .text_pair = "#2"},
                   .labels = LabelNeed::kIgnored,
                   .has_header = false}),
            (Questions{"1 [] Who? | A cat. |"}));
}

struct BadInput {
  const char* name;
  std::string contents;
  const char* expected;
};

TEST(Questions, RefusesBadInputWithThePlace) {
  const auto question = [](const std::string& answers) {
    return squad(paragraph(R"({"id": "q7", "question": "Who?", "answers": )" + answers + "}"));
  };
  const std::string good = question(R"([{"text": "cat", "answer_start": 2}])");
  const std::string flat =
      R"({"id": "q7", "question": "Who?", "context": "A cat sat.", "answers": )";
  const std::vector<BadInput> cases = {
      {"x.json", "", "line 1, byte 1: the file ends, expected SQuAD's object"},
      {"x.json", " \n[]", "line 2, byte 1: a list, expected SQuAD's object with \"data\""},
      {"x.json", "\"data\"", "line 1, byte 1: a string, expected SQuAD's object"},
      {"x.json", "{}", "no \"data\" in the object"},
      {"x.json", flat + "[]}\n",
       "no \"data\" in the object; expected SQuAD's (rows, one object a line, are read from "
       ".jsonl)"},
      {"x.json", R"({"data": []})", "no questions"},
      {"x.json", squad(""), "no questions"},
      {"x.json", R"({"data": {"a": 1}})",
       "line 1, byte 10: an object, expected a list of articles as \"data\""},
      {"x.json", R"({"data": ["a"]})", "line 1, byte 11: a string, expected an article"},
      {"x.json", R"({"data": [{"title": "a"}]})", "article 1 has no \"paragraphs\""},
      {"x.json", R"({"data": [{"paragraphs": null}]})",
       "line 1, byte 26: 'n', expected a list as \"paragraphs\""},
      {"x.json", R"({"data": [], "data": []})", "key \"data\" appears twice"},
      {"x.json", R"({"data": [{"paragraphs": [], "paragraphs": []}]})",
       "key \"paragraphs\" appears twice in article 1"},
      {"x.json", good + " x", "'x', expected nothing more: the document has ended"},
      {"x.json", good.substr(0, good.size() - 1),
       "the file ends, expected ',' or '}'; was it cut off?"},
      {"x.json", good.substr(0, good.size() - 20),
       "line 1, byte 59: the file ends inside the value that begins here; was it cut off?"},
      {"x.json", R"({"data" [)", "line 1, byte 9: a list, expected ':' after \"data\""},
      {"x.json", R"({data: []})", "line 1, byte 2: 'd', expected a key in quotes"},
      {"x.json", R"({"a": 1 "data": []})", "line 1, byte 9: a string, expected ',' or '}'"},
      {"x.json", R"({"a": , "data": []})", "line 1, byte 7: ',', expected a value"},
      {"x.json", R"({"a": 1, })", "line 1, byte 10: '}', expected a key in quotes"},
      {"x.json", R"({"data": [,]})", "line 1, byte 11: ',', expected an article"},
      {"x.json", R"({"a": tru, "data": []})", "line 1, byte 7: not valid JSON"},
      {"x.json", R"({"a": 1e400, "data": []})",
       "line 1, byte 7: a number that is malformed or out of range"},
      {"x.json", R"({"a\x": 1, "data": []})", "line 1, byte 2: a string with a bad escape"},
      {"x.json", "{\"a\":\n \"b\xFF\"}", "line 2, byte 4: not UTF-8 (0xff)"},
      {"x.json", "{\"a\": \"b\xFF\"}", "line 1, byte 9: not UTF-8 (0xff)"},
      {"x.json", R"({"a": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
       "line 1, byte 7: nested deeper than 64"},
      {"x.json", R"({"a": )" + std::string(100'000, '['),
       "line 1, byte 7: the file ends inside the value"},
      {"x.json", squad("5"), "line 1, byte 59: a number, expected a paragraph"},
      {"x.json", squad(R"({"qas": []})"),
       "line 1, byte 59: no \"context\"; expected a string there"},
      {"x.json", squad(R"({"qas": [], "context": null})"),
       "\"context\" is null, expected a string"},
      {"x.json", squad(R"({"context": "a"})"), "line 1, byte 59: the paragraph has no \"qas\""},
      {"x.json", squad(R"({"context": "a", "qas": {}})"), "\"qas\" is an object, expected a list"},
      {"x.json", squad(R"({"context": "a", "context": "b", "qas": []})"),
       "key \"context\" appears twice in the paragraph"},
      {"x.json", squad(paragraph("1")), "item 1 of \"qas\" is a number, expected an object"},
      {"x.json", squad(paragraph(R"({"id": "a", "id": "b"})")),
       "item 1 of \"qas\": key \"id\" appears twice"},
      {"x.json", squad(paragraph(R"({"id": "a"})")),
       "question \"a\": no \"question\"; expected a string there"},
      {"x.json", squad(paragraph(R"({"id": []})")), "\"id\" is a list, expected a string"},
      {"x.json", squad(paragraph(R"({"id": "a", "question": 1})")),
       "question \"a\": \"question\" is a number, expected a string"},
      {"x.json", squad(paragraph(R"({"id": "a", "question": "?"})")),
       "question \"a\": no \"answers\"; expected a list of answers"},
      {"x.json", question("\"cat\""),
       "line 1, byte 59: question \"q7\": \"answers\" is a string, expected a list of answers"},
      {"x.json", question("[5]"), "question \"q7\": an answer is a number, expected an object"},
      {"x.json", question(R"([{"answer_start": 2}])"),
       "question \"q7\": an answer has no \"text\""},
      {"x.json", question(R"([{"text": "cat"}])"),
       "question \"q7\": an answer has no \"answer_start\""},
      {"x.json", question(R"([{"text": 5, "answer_start": 2}])"),
       "an answer's \"text\" is a number, expected a string"},
      {"x.json", question(R"([{"text": "", "answer_start": 2}])"), "an answer's \"text\" is empty"},
      {"x.json", question(R"([{"text": "cat", "answer_start": -1}])"),
       "\"answer_start\" is -1, expected a number of code points"},
      {"x.json", question(R"([{"text": "cat", "answer_start": 2.0}])"),
       "\"answer_start\" is a number, expected a number of code points"},
      {"x.json", question(R"([{"text": "cat", "answer_start": "2"}])"),
       "\"answer_start\" is a string, expected"},
      {"x.json", question(R"([{"text": "cat", "answer_start": 3}])"),
       "question \"q7\": answer \"cat\" is not at \"answer_start\" 3: there is \"at sat\"; the "
       "first one is at 2 (it counts code points from 0)"},
      {"x.json", question(R"([{"text": "dog", "answer_start": 99}])"),
       "answer \"dog\" is not at \"answer_start\" 99: the context has 10 code points; the context "
       "does not have it"},
      {"x.json", question(R"([{"text": "cat", "answer_start": 18446744073709551615}])"),
       "is not at \"answer_start\" 18446744073709551615"},
      {"x.json", question(R"([{"text": "cat", "text": "cat", "answer_start": 2}])"),
       "key \"text\" appears twice in an answer"},
      {"x.json", question(R"([], "is_impossible": false)"),
       "question \"q7\": \"is_impossible\" is false, but there is no answer"},
      {"x.json", question(R"([], "is_impossible": 1)"),
       "\"is_impossible\" is a number, expected true or false"},
      {"x.json", question(R"([{"text": "cat", "answer_start": 2}], "is_impossible": true)"),
       "\"is_impossible\" is true, but there is an answer, \"cat\""},
      {"x.json.gz", good, "damaged gzip data"},
      {"x.jsonl", "\n", "no rows"},
      {"x.jsonl", good, "no question column by a usual name (question, query)"},
      {"x.jsonl", R"({"question": "?", "answers": []})",
       "no context column by a usual name (context, passage, ...) for the question \"question\""},
      {"x.jsonl", R"({"question": "?", "context": "a"})",
       "no answers column by a usual name (answers)"},
      {"x.jsonl", flat + "[]}\n" + flat + "5}",
       "x.jsonl: line 2: question \"q7\": \"answers\" is a number"},
      {"x.jsonl", flat + R"({"text": "cat", "answer_start": 2}})",
       "expected two lists in it, \"text\" and \"answer_start\""},
      {"x.jsonl", flat + R"({"text": ["cat"], "answer_start": []}})",
       "1 answers' texts, but 0 of \"answer_start\""},
      {"x.jsonl", flat + R"({"text": ["cat"], "answer_start": [1]}})",
       "line 1: question \"q7\": answer \"cat\" is not at \"answer_start\" 1"},
      {"x.csv", "question,context\na,b\n",
       "tables hold no answers; expected SQuAD's .json, or .jsonl"},
      {"x.txt", "a\n",
       "unknown format for questions; expected a name in one of .json, .jsonl, .csv, .tsv, "
       "optionally .gz or .zst"},
  };
  for (const BadInput& bad : cases) {
    const std::string error = error_of([&] { parse(bad.contents, bad.name); });
    EXPECT_TRUE(error.starts_with(std::string("3: ") + bad.name)) << error;
    EXPECT_NE(error.find(bad.expected), error.npos) << error << "\nexpected: " << bad.expected;
  }
  EXPECT_NE(error_of([&] {
              parse(good, "x.json", questions(LabelNeed::kIgnored, {.text_pair = "-"}));
            }).find("needs a context"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              parse("question\na\n", "x.csv", questions(LabelNeed::kIgnored));
            }).find("no context column"),
            std::string::npos);
}

TEST(Squad, DoesNotDependOnHowBytesArrive) {
  std::string paragraphs;
  for (int i = 0; i < 30; ++i) {
    paragraphs +=
        (i ? ", \n " : "") +
        paragraph(fmt::format(R"({{"id": "{}", "question": "\"{{[\u00e9 {}", "answers": []}})", i,
                              std::string(size_t(i), 'x')));
  }
  const std::string document = "\xEF\xBB\xBF \n" + squad(paragraphs) + " \n\n";
  const Questions expected = parse(document, "x.json");
  EXPECT_EQ(expected.size(), 30u);
  EXPECT_EQ(parse(gzipped(document), "x.json.gz"), expected);
  EXPECT_EQ(parse(zstd_compressed(document), "x.json.zst"), expected);
  for (size_t chunk = 1; chunk <= 7; ++chunk) {
    EXPECT_EQ(questions_of(
                  *open_rows(std::make_unique<SlowSource>(document, chunk), "x.json", questions())),
              expected);
  }
}

// A document without a line break that is never in memory: articles without end.
class EndlessSource final : public ByteSource {
 public:
  explicit EndlessSource(uint64_t bytes) : left_(bytes) {}
  size_t read(char* destination, size_t bytes) override {
    size_t count = 0;
    for (; count < bytes && left_ > 0; ++count, --left_) {
      if (next_ == part_.size()) {
        part_ = article_;
        next_ = 0;
      }
      destination[count] = part_[next_++];
    }
    return count;
  }
  uint64_t stored_bytes() const override { return 0; }

 private:
  std::string article_ =
      R"({"title": "T", "paragraphs": [)" +
      paragraph(
          R"({"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 2}]})") +
      "]},";
  std::string part_ = R"({"data": [)";
  size_t next_ = 0;
  uint64_t left_;
};

TEST(Squad, HoldsAParagraphAtATime) {
  const auto reader = open_rows(std::make_unique<EndlessSource>(64 << 20), "x.json", questions());
  Row row;
  ASSERT_TRUE(reader->next(row));
  const size_t before = allocated_bytes();
  for (int i = 0; i < 400'000; ++i) ASSERT_TRUE(reader->next(row));
  EXPECT_LT((allocated_bytes() - before) / 400'000, 50u) << "more than the place for messages";
  EXPECT_NE(error_of([&] {
              while (reader->next(row)) {
              }
            }).find("was it cut off?"),
            std::string::npos);
}

TEST(Squad, RefusesParagraphsThatAreTooLong) {
  RowReaderOptions small = questions();
  small.max_record_bytes = 1000;
  EXPECT_NE(error_of([&] {
              parse(squad(R"({"context": ")" + std::string(5000, 'a') + R"(", "qas": []})"),
                    "x.json", small);
            })
                .find("line 1, byte 59: the value that begins here is not finished after 1000 "
                      "bytes, the most it may have"),
            std::string::npos);
  // White space between values may be as long as it likes.
  const std::string spaces(400'000, ' ');
  EXPECT_EQ(
      parse(spaces + squad(spaces + paragraph(R"({"id": "1", "question": "Who?", "answers": []})") +
                           spaces),
            "x.json", small)
          .size(),
      1u);
}

TEST(CodePoints, AreFoundFromEitherSide) {
  std::string text;
  std::vector<size_t> begins;
  for (int i = 0; i < 1500; ++i) {
    begins.push_back(text.size());
    text += std::array<const char*, 4>{"a", "é", "中", "🙂"}[size_t(i * 7 % 11 % 4)];
  }
  begins.push_back(text.size());
  CodePointIndex index;
  index.reset(text);
  ASSERT_EQ(index.size(), 1500u);
  for (uint64_t i = 0; i <= 1500; ++i) {
    EXPECT_EQ(index.byte_of(i), begins[i]);
    EXPECT_EQ(index.code_point_of(begins[i]), i);
  }
  index.reset("");
  EXPECT_EQ(index.byte_of(0), 0u);
  EXPECT_EQ(index.code_point_of(0), 0u);
}

}  // namespace
}  // namespace snug
