// Against scikit-learn, SciPy, seqeval and SQuAD's scripts. tests/golden/make_metrics.py makes the
// expected values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/file.h"
#include "core/json.h"
#include "metrics/answers.h"
#include "metrics/classification.h"
#include "metrics/entities.h"
#include "metrics/multi_label.h"
#include "metrics/regression.h"

namespace snug {
namespace {

using Strings = std::vector<std::string>;

// Sums of some dozens of terms in fp64: a few hundred times its rounding.
constexpr double kTolerance = 1e-12;

const std::filesystem::path kScratch = std::filesystem::temp_directory_path() / "snug-metrics-test";

Json cases_of(const std::string& name) {
  const auto file =
      std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden/metrics" / (name + ".json");
  return parse_json(read_small_file(file), file.string());
}

// Relative to the size that the parts of a number have: a correlation near 0 is a sum of larger
// ones.
bool near(double got, double expected, double least_size = 1) {
  return std::abs(got - expected) <= kTolerance * std::max(least_size, std::abs(expected));
}

// Every name that the reference has, and no other.
void expect_values(const MetricValues& got, const Json& expected) {
  for (const auto& [name, value] : expected.items()) {
    ASSERT_TRUE(got.contains(name)) << name;
    const bool sum_of_errors = name == "mse" || name == "mae";
    EXPECT_TRUE(near(got.at(name), value, sum_of_errors ? 0 : 1))
        << name << ": " << fmt::format("{} instead of {}", got.at(name), value.get<double>());
  }
  EXPECT_EQ(got.size(), expected.size());
}

void expect_row(const ScoreRow& got, const Json& expected) {
  EXPECT_TRUE(near(got.precision, expected[0])) << got.name << ": " << got.precision;
  EXPECT_TRUE(near(got.recall, expected[1])) << got.name << ": " << got.recall;
  EXPECT_TRUE(near(got.f1, expected[2])) << got.name << ": " << got.f1;
  EXPECT_EQ(got.support, expected[3].get<uint64_t>()) << got.name;
}

Strings numbered_labels(size_t count) {
  Strings labels;
  for (size_t i = 0; i < count; ++i) labels.push_back("label " + std::to_string(i));
  return labels;
}

TEST(GoldenMetrics, TheCheckCanFail) {
  EXPECT_TRUE(near(0.1 + 0.2, 0.3));
  EXPECT_FALSE(near(0.3 + 1e-11, 0.3));
  EXPECT_FALSE(near(NAN, 0));
  EXPECT_FALSE(near(1e-300, 1.1e-300, 0));
}

TEST(GoldenMetrics, Classification) {
  for (const Json& c : cases_of("classification")) {
    SCOPED_TRACE(c["name"].get<std::string>());
    ClassificationMetrics metrics(numbered_labels(c["classes"]), kScratch);
    for (size_t i = 0; i < c["expected"].size(); ++i) {
      if (c["probabilities"].is_null()) {
        metrics.add(c["expected"][i], c["predicted"][i].get<int32_t>());
      } else {
        metrics.add(c["expected"][i], c["predicted"][i],
                    c["probabilities"][i].get<std::vector<double>>());
      }
    }
    expect_values(metrics.all(), c["all"]);
    const ScoreReport report = metrics.report();
    ASSERT_EQ(report.rows.size(), c["rows"].size());
    for (size_t i = 0; i < report.rows.size(); ++i) expect_row(report.rows[i], c["rows"][i]);
    EXPECT_EQ(Json(report.confusion), c["confusion"]);
  }
}

TEST(GoldenMetrics, MultiLabel) {
  for (const Json& c : cases_of("multi_label")) {
    SCOPED_TRACE(c["name"].get<std::string>());
    MultiLabelMetrics metrics(numbered_labels(c["rows"].size()), kScratch);
    for (size_t i = 0; i < c["expected"].size(); ++i) {
      metrics.add(c["expected"][i].get<std::vector<uint8_t>>(),
                  c["probabilities"][i].get<std::vector<double>>());
    }
    expect_values(metrics.all(), c["all"]);
    const ScoreReport report = metrics.report();
    ASSERT_EQ(report.rows.size(), c["rows"].size());
    for (size_t i = 0; i < report.rows.size(); ++i) expect_row(report.rows[i], c["rows"][i]);
  }
}

TEST(GoldenMetrics, Regression) {
  for (const Json& c : cases_of("regression")) {
    SCOPED_TRACE(c["name"].get<std::string>());
    RegressionMetrics metrics(kScratch);
    for (size_t i = 0; i < c["expected"].size(); ++i) {
      metrics.add(c["expected"][i], c["predicted"][i]);
    }
    expect_values(metrics.all(), c["all"]);
  }
}

TagScheme scheme_named(const std::string& name) {
  if (name == "iob1") return TagScheme::kIob1;
  if (name == "iob2") return TagScheme::kIob2;
  if (name == "iobes") return TagScheme::kIobes;
  return name == "bilou" ? TagScheme::kBilou : TagScheme::kConll;
}

std::vector<int32_t> ids_of(const Json& tags, const Strings& labels) {
  std::vector<int32_t> ids;
  for (const std::string tag : tags) {
    ids.push_back(int32_t(std::ranges::find(labels, tag) - labels.begin()));
  }
  return ids;
}

TEST(GoldenMetrics, Entities) {
  for (const Json& c : cases_of("entities")) {
    SCOPED_TRACE(c["name"].get<std::string>() + ", " + c["scheme"].get<std::string>());
    Strings labels;
    for (const char* side : {"expected", "predicted"}) {
      for (const Strings tags : c[side]) labels.insert(labels.end(), tags.begin(), tags.end());
    }
    std::ranges::sort(labels);
    labels.erase(std::ranges::unique(labels).begin(), labels.end());
    const TagScheme scheme = scheme_named(c["scheme"]);
    const TagSet tags(labels, scheme);
    EntityMetrics metrics(labels, scheme);
    for (size_t i = 0; i < c["expected"].size(); ++i) {
      const std::vector<int32_t> ids = ids_of(c["expected"][i], labels);
      metrics.add(ids, ids_of(c["predicted"][i], labels));
      std::vector<Entity> found;
      tags.find_entities(ids, found);
      Json named = Json::array();
      for (const Entity& e : found) {
        named.push_back({tags.types()[size_t(e.type)], e.first, e.last});
      }
      EXPECT_EQ(named, c["entities"][i]) << c["expected"][i];
    }
    expect_values(metrics.all(), c["all"]);
    const ScoreReport report = metrics.report();
    ASSERT_EQ(report.rows.size(), c["rows"].size());
    for (size_t i = 0; i < report.rows.size(); ++i) {
      EXPECT_EQ(report.rows[i].name, c["rows"][i][0]);
      expect_row(report.rows[i], Json(c["rows"][i].begin() + 1, c["rows"][i].end()));
    }
  }
}

TEST(GoldenMetrics, Answers) {
  for (const Json& c : cases_of("answers")) {
    SCOPED_TRACE(c["name"].get<std::string>());
    for (const Json& text : c.value("texts", Json::array())) {
      EXPECT_EQ(normalize_answer(text[0].get<std::string>()), text[1]) << text[0];
    }
    if (!c.contains("questions")) continue;
    AnswerMetrics first(SquadVersion::k1, kScratch),
        second(SquadVersion::k2, kScratch, c["threshold"]);
    for (const Json& q : c["questions"]) {
      const auto gold = q["gold"].get<Strings>();
      const std::string prediction = q["prediction"];
      first.add(gold, prediction);
      second.add(gold, prediction, q["score"]);
    }
    if (c.contains("squad1")) expect_values(first.all(), c["squad1"]);
    expect_values(second.all(), c["squad2"]);
  }
}

}  // namespace
}  // namespace snug
