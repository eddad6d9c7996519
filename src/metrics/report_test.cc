#include <gtest/gtest.h>

#include "core/json.h"
#include "snug/evaluation.h"

namespace snug {
namespace {

ScoreReport two_classes() {
  ScoreReport report;
  report.unit = "class";
  report.rows = {{"negative", 0.75, 0.6, 2.0 / 3, 5}, {"人\n物", 0.5, 2.0 / 3, 4.0 / 7, 3}};
  report.averages = {{"macro", 0.625, 0.6333333, 0.6190476, 8}};
  report.confusion = {{3, 2}, {1, 1234}};
  return report;
}

TEST(ScoreReport, IsDrawnForATerminal) {
  EXPECT_EQ(two_classes().to_text(),
            "class             precision    recall        f1    support\n"
            "negative             0.7500    0.6000    0.6667          5\n"
            "人 物                0.5000    0.6667    0.5714          3\n"
            "macro average        0.6250    0.6333    0.6190          8\n"
            "\n"
            "confusion matrix: a row is what the data says, a column what was predicted\n"
            "          negative  人 物\n"
            "negative         3      2\n"
            "人 物            1   1234\n");
  EXPECT_EQ(ScoreReport{}.to_text(), "");
}

TEST(ScoreReport, OfManyClassesShowsWhatIsWrong) {
  ScoreReport report;
  report.unit = "class";
  for (int i = 0; i < 60; ++i) {
    report.rows.push_back({"class " + std::to_string(i), 0, 0, i / 60.0, uint64_t(i > 0)});
  }
  report.rows[5].name = std::string(30, 'x');
  report.confusion.assign(60, std::vector<uint64_t>(60));
  report.confusion[7][5] = 12;
  report.confusion[8][9] = 3;
  report.confusion[9][9] = 100;
  const std::string text = report.to_text();
  EXPECT_NE(text.find("(the 20 with the lowest f1, of 60; --json has all)"), text.npos) << text;
  EXPECT_EQ(text.find("class 0 "), text.npos) << "not in the data";
  EXPECT_NE(text.find("class 20 "), text.npos);
  EXPECT_EQ(text.find("class 21 "), text.npos);
  EXPECT_NE(text.find("      12  class 7 -> " + std::string(23, 'x') +
                      "…\n       3  class 8 -> class 9\n"),
            text.npos)
      << text;
}

TEST(Evaluation, KeepsNumbersAtTheTopOfItsJson) {
  Evaluation evaluation;
  evaluation.metrics = {{"accuracy", 0.5}, {"f1", 0.25}};
  EXPECT_EQ(Json::parse(evaluation.to_json()), Json(evaluation.metrics));
  evaluation.report = two_classes();
  const Json json = Json::parse(evaluation.to_json());
  EXPECT_EQ(json["accuracy"], 0.5);
  EXPECT_EQ(json["per_class"][1]["class"], "人\n物");
  EXPECT_EQ(json["per_class"][0]["recall"], 0.6);
  EXPECT_EQ(json["confusion_matrix"], Json(two_classes().confusion));
  EXPECT_EQ(evaluation.to_text().substr(0, 32), "accuracy                0.5\nf1  ");
}

}  // namespace
}  // namespace snug
