// What golden files do not show: nothing to measure, many examples in little memory, what is
// refused.
#include "metrics/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error.h"
#include "metrics/answers.h"
#include "metrics/classification.h"
#include "metrics/entities.h"
#include "metrics/multi_label.h"
#include "metrics/probabilities.h"
#include "metrics/regression.h"

namespace snug {
namespace {

using Strings = std::vector<std::string>;

const std::filesystem::path kScratch = std::filesystem::temp_directory_path() / "snug-metrics-test";

std::vector<std::unique_ptr<Metrics>> one_of_each() {
  std::vector<std::unique_ptr<Metrics>> all;
  all.push_back(std::make_unique<ClassificationMetrics>(Strings{"no", "yes"}, kScratch));
  all.push_back(std::make_unique<ClassificationMetrics>(Strings(300, "class"), kScratch));
  all.push_back(std::make_unique<MultiLabelMetrics>(Strings{"x", "y"}, kScratch));
  all.push_back(std::make_unique<RegressionMetrics>(kScratch));
  all.push_back(std::make_unique<EntityMetrics>(Strings{"O", "B-X"}, TagScheme::kConll));
  all.push_back(std::make_unique<AnswerMetrics>(SquadVersion::k1, kScratch));
  all.push_back(std::make_unique<AnswerMetrics>(SquadVersion::k2, kScratch));
  return all;
}

TEST(Metrics, NothingToMeasureGivesFiniteNumbers) {
  for (const auto& metrics : one_of_each()) {
    EXPECT_EQ(metrics->examples(), 0u);
    for (const auto& [name, value] : metrics->all()) EXPECT_TRUE(std::isfinite(value)) << name;
    metrics->report().to_text();
  }
}

TEST(Metrics, ResetForgets) {
  const std::vector<double> half = {0.5, 0.5}, sure = {0, 1};
  ClassificationMetrics classes({"no", "yes"}, kScratch);
  for (int i = 0; i < 2; ++i) {
    classes.reset();
    classes.add(0, 0, half);
    classes.add(1, 1, sure);
    EXPECT_EQ(classes.examples(), 2u);
    EXPECT_EQ(classes.all().at("roc_auc"), 1);
    EXPECT_EQ(classes.report().confusion, (std::vector<std::vector<uint64_t>>{{1, 0}, {0, 1}}));
  }
  RegressionMetrics numbers(kScratch);
  numbers.add(1000, -1000);
  numbers.reset();
  numbers.add(1, 2);
  numbers.add(2, 4);
  EXPECT_DOUBLE_EQ(numbers.all().at("pearson"), 1);
  EXPECT_DOUBLE_EQ(numbers.all().at("mse"), 2.5);
}

// A sort in 2 KiB gives what one in memory gives. More than half of the ranks are shared.
TEST(Metrics, RanksDoNotDependOnTheBuffer) {
  std::mt19937_64 random(7);
  RegressionMetrics small(kScratch, 2048), large(kScratch);
  for (int i = 0; i < 20000; ++i) {
    const double expected = double(random() % 21) / 4,
                 predicted = expected + double(random() % 1000) / 250;
    small.add(expected, predicted);
    large.add(expected, predicted);
  }
  const MetricValues a = small.all(), b = large.all();
  for (const auto& [name, value] : a) EXPECT_NEAR(value, b.at(name), 1e-12) << name;
  EXPECT_GT(a.at("spearmanr"), 0.5);
}

// 200,000 examples are three times what the buffer holds. The area of scores i and j < i is known:
// every other is positive.
TEST(Metrics, AreasOfMoreScoresThanMemoryHolds) {
  const uint64_t count = 200'000;
  RocAreas areas(2, kScratch);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t place = i * 7919 % count;  // 7919 is prime to it: every place once
    areas.add(0, double(place), place % 2 == 1);
    areas.add(1, double(place / 2), place % 2 == 1);  // positive and negative are equal
  }
  const double half = double(count) / 2;
  const auto values = areas.areas();
  EXPECT_NEAR(*values[0], (half + 1) / (2 * half), 1e-12);
  EXPECT_NEAR(*values[1], 0.5, 1e-12);
}

TEST(Metrics, TooManyScoresHaveNoArea) {
  RocAreas areas(1, kScratch, 10);
  for (int i = 0; i < 10; ++i) areas.add(0, i, i % 2);
  EXPECT_TRUE(areas.mean_area());
  areas.add(0, 10, true);
  EXPECT_FALSE(areas.mean_area());
  areas.reset();
  for (int i = 0; i < 4; ++i) areas.add(0, i, i > 1);
  EXPECT_EQ(areas.mean_area(), 1.0);
}

TEST(Metrics, ManyClassesHaveNoMatrix) {
  ClassificationMetrics metrics(Strings(10'000, "class"), kScratch);
  metrics.add(9'999, 9'999, std::vector<double>(10'000, 1e-4));
  metrics.add(0, 9'999, std::vector<double>(10'000, 1e-4));
  EXPECT_TRUE(metrics.report().confusion.empty());
  EXPECT_FALSE(metrics.all().contains("roc_auc"));
  EXPECT_DOUBLE_EQ(metrics.all().at("accuracy"), 0.5);
  EXPECT_LT(ClassificationMetrics::bytes(10'000), ClassificationMetrics::bytes(256));
}

template <class Action>
void expect_error(ErrorKind kind, const std::string& part, Action action) {
  try {
    action();
    ADD_FAILURE() << "expected an error with \"" << part << "\"";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind);
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Metrics, WhatIsNoNumberIsRefused) {
  ClassificationMetrics classes({"no", "yes"}, kScratch);
  expect_error(ErrorKind::kNumbers, "not a number", [&] {
    classes.add(0, 0, std::vector<double>{NAN, NAN});
  });
  RegressionMetrics numbers(kScratch);
  expect_error(ErrorKind::kNumbers, "inf", [&] { numbers.add(1, INFINITY); });
  expect_error(ErrorKind::kNumbers, "nan", [&] { numbers.add(NAN, 1); });
  AnswerMetrics answers(SquadVersion::k2, kScratch);
  expect_error(ErrorKind::kNumbers, "no answer", [&] { answers.add({}, "", NAN); });
}

TEST(Metrics, TagsOfAnotherSchemeAreRefused) {
  struct Case {
    Strings labels;
    TagScheme scheme;
    const char* part;
  };
  const std::vector<Case> cases = {
      {{"O", ""}, TagScheme::kConll, "a tag is empty"},
      {{"O", "E-X"}, TagScheme::kIob2, "\"E-X\" is not of the scheme IOB2"},
      {{"O", "S-X"}, TagScheme::kIob1, "\"S-X\" is not of the scheme IOB1"},
      {{"O", "L-X"}, TagScheme::kIobes, "\"L-X\" is not of the scheme IOBES"},
      {{"O", "S-X"}, TagScheme::kBilou, "\"S-X\" is not of the scheme BILOU"},
      {{"ü"}, TagScheme::kIob2, "\"ü\""},
  };
  for (const Case& c : cases) {
    expect_error(ErrorKind::kInput, c.part, [&] { TagSet(c.labels, c.scheme); });
  }
}

TEST(Metrics, SchemeIsReadOffTheLabels) {
  EXPECT_EQ(scheme_of(Strings{"O", "B-X", "I-X", "L-X", "U-X"}), TagScheme::kBilou);
  EXPECT_EQ(scheme_of(Strings{"O", "B-X", "I-X", "E-X", "S-X"}), TagScheme::kConll);
  EXPECT_EQ(scheme_of(Strings{"LOC", "O"}), TagScheme::kConll);
}

TEST(Metrics, IllFormedAnswersAreCompared) {
  EXPECT_EQ(normalize_answer("\xff\xfe the \xc3"), "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd");
  EXPECT_EQ(score_answer(Strings{}, "x", SquadVersion::k1).exact, 0);
}

TEST(Metrics, LossesAndErrorsAreBetterWhenSmall) {
  for (const char* name : {"loss", "perplexity", "mse", "mae"}) {
    EXPECT_FALSE(greater_is_better(name)) << name;
  }
  for (const char* name : {"accuracy", "f1", "r2", "pearson", "exact"}) {
    EXPECT_TRUE(greater_is_better(name)) << name;
  }
}

TEST(Metrics, ArgmaxTakesTheFirstOfEquals) {
  const std::vector<float> scores = {1, 3, 3, 2};
  EXPECT_EQ(argmax(scores), 1);
}

TEST(Metrics, ProbabilitiesOfExtremeScores) {
  std::vector<double> p;
  softmax(std::vector<float>{1e30f, -1e30f, 1e30f}, p);
  EXPECT_EQ(p, (std::vector<double>{0.5, 0, 0.5}));
  EXPECT_EQ(sigmoid(0), 0.5);
  EXPECT_EQ(sigmoid(1e4), 1);
  EXPECT_EQ(sigmoid(-1e4), 0);
  EXPECT_NEAR(sigmoid(-2) + sigmoid(2), 1, 1e-15);
}

}  // namespace
}  // namespace snug
