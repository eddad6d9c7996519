#include "data/labels.h"

#include "data/row_labels.h"
#include "data/test_support.h"

namespace snug {
namespace {

struct Case {
  std::vector<std::string> labels;  // one a line, from line 2
  std::vector<std::string> known;   // empty: collected
  std::string expected;             // the names in order, or what the error says
};

std::string outcome(const Case& test, LabelNeed need = LabelNeed::kRequired) {
  const LabelSet known{test.known};
  LabelCollector collector({test.known.empty() ? nullptr : &known, need, "x.csv"});
  std::string result;
  const std::string error = error_of([&] {
    for (size_t i = 0; i < test.labels.size(); ++i) collector.add(test.labels[i], i + 2);
    for (const std::string& name : collector.finish().labels.names) result += name + " ";
  });
  return error == "no error" ? result : error;
}

TEST(Labels, AreOrderedAndCheckedWhileTheyAreRead) {
  const Case cases[] = {
      {{"1", "0", "1"}, {}, "0 1 "},
      {{"10", "2", "1", "0", "3", "4", "5", "6", "7", "8", "9"}, {}, "0 1 2 3 4 5 6 7 8 9 10 "},
      {{"1", "2", "10"}, {}, "1 10 2 "},
      {{"pos", "neg", "Zoo"}, {}, "Zoo neg pos "},
      {{"-1", "1"}, {}, "-1 1 "},
      {{"00", "1"}, {}, "00 1 "},
      {{"1", "1"}, {}, "1 "},
      {{"1", ""}, {}, "line 3: the label is empty"},
      {{"1", "NaN"}, {}, "line 3: label \"NaN\" is a missing value"},
      {{"1", "1.0"}, {}, "line 3: label \"1.0\" is a number with a fraction"},
      {{"1", "2e-5"}, {}, "line 3: label \"2e-5\" is a number with a fraction"},
      {{"v1.0", "e", "."}, {}, ". e v1.0 "},
      {{"yes", "no", " no"}, {}, "line 4: label \" no\" begins or ends with a space"},
      {{"yes", "No", "no"}, {}, "line 4: label \"no\" differs from \"No\" (line 3) only in case"},
      {{"0", "-1", "1"}, {}, "line 3: label \"-1\" marks rows without a label"},
      {{"-1", "-1"}, {}, "line 2: label \"-1\" marks rows without a label"},
      {{"b"}, {"b", "a"}, "b a "},
      {{"b", "positve"},
       {"b", "positive"},
       "line 3: label \"positve\" is not one of the known labels \"b\", \"positive\"; did you mean "
       "\"positive\"?"},
      {{"Positive "}, {"negative", "positive"}, "did you mean \"positive\"?"},
      {{"7"}, {"0", "1"}, "line 2: label \"7\" is not one of the known labels \"0\", \"1\""},
      {{"-1"}, {"0", "1"}, "line 2: label \"-1\" is not one of the known labels"},
      {{""}, {"0", "1"}, "line 2: the label is empty"},
  };
  for (const Case& test : cases) {
    const std::string got = outcome(test);
    EXPECT_NE(got.find(test.expected), got.npos) << got << "\nexpected: " << test.expected;
  }
}

TEST(Labels, MayBeAbsentWhereTheyAreOptional) {
  const LabelSet known{{"a", "b"}};
  LabelCollector collector({&known, LabelNeed::kOptional, "x.csv"});
  EXPECT_EQ(collector.add(std::nullopt, 1), -1);
  EXPECT_EQ(collector.add("", 1), -1);
  EXPECT_EQ(collector.add("-1", 1), -1);
  EXPECT_EQ(collector.add("b", 1), 1);
  EXPECT_THROW(collector.add("c", 1), Error);
  EXPECT_EQ(outcome({{"one", ""}, {}, ""}, LabelNeed::kOptional), "one ");
}

TEST(Labels, RefuseAColumnOfValues) {
  LabelCollector collector({nullptr, LabelNeed::kRequired, "x.csv"});
  const std::string error = error_of([&] {
    for (uint64_t i = 0; i <= 100'000; ++i) collector.add("v" + std::to_string(i), i + 2);
  });
  EXPECT_NE(error.find("line 100002: more than 100000 different labels"), error.npos) << error;
}

TEST(Labels, CountOnceInARowThatRepeatsThem) {
  RowLabeller labeller(Labelling::kClasses, {.need = LabelNeed::kRequired, .file = "x.csv"}, ',');
  RowLabels labels;
  for (const char* list : {"a,b,a", "a, a", "b"}) labeller.add({.label = list}, labels);
  EXPECT_EQ(labeller.finish().counts, (std::vector<uint64_t>{2, 2}));
}

TEST(Labels, OfWordsMayBeMissingWhereTheReaderLetsThem) {
  RowLabeller labeller(Labelling::kTags, {.need = LabelNeed::kRequired, .file = "x.jsonl"}, ',');
  RowLabels labels;
  const Word words[] = {{0, 1, "O"}, {2, 3, ""}};
  labeller.add({.text = "a b", .words = words}, labels);
  ASSERT_EQ(labels.words.size(), 2u);
  EXPECT_EQ(labels.words[0].tag, 0);
  EXPECT_EQ(labels.words[1].tag, -1);
  EXPECT_EQ(labeller.finish().counts, (std::vector<uint64_t>{1}));
}

TEST(Labels, FindSaysMinusOneWhenUnknown) {
  const LabelSet labels{{"a", "b"}};
  EXPECT_EQ(labels.find("b"), 1);
  EXPECT_EQ(labels.find("c"), -1);
}

}  // namespace
}  // namespace snug
