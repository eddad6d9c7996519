// Expected values are scikit-learn's (accuracy_score, f1_score, matthews_corrcoef) on the same labels.
#include "train/metrics.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

struct Case {
  size_t classes;
  std::vector<int32_t> expected, predicted;
  double accuracy, f1, f1_macro, matthews;
};

TEST(Metrics, AgreeWithScikitLearn) {
  const std::vector<Case> cases = {
      // Class 4 is never predicted, class 3 never right.
      {5, {0, 0, 1, 2, 2, 2, 3, 0, 1, 2, 4}, {0, 1, 1, 2, 0, 2, 2, 0, 1, 2, 0},
       0.6363636363636364, 0.42428571428571427, 0.42428571428571427, 0.5067598598503591},
      {2, {0, 1, 1, 0, 1, 1}, {0, 1, 0, 1, 1, 1}, 0.6666666666666666, 0.75, 0.625, 0.25},
      {2, {1, 1, 1}, {1, 1, 1}, 1.0, 1.0, 1.0, 0.0},   // one class only: Matthews is 0/0
      {2, {0, 0, 0}, {1, 1, 0}, 0.3333333333333333, 0.0, 0.25, 0.0},
      {3, {}, {}, 0.0, 0.0, 0.0, 0.0},
  };
  for (const Case& c : cases) {
    ClassificationMetrics metrics(c.classes);
    for (size_t i = 0; i < c.expected.size(); ++i) metrics.add(c.expected[i], c.predicted[i]);
    auto all = metrics.all();
    EXPECT_DOUBLE_EQ(all["accuracy"], c.accuracy);
    EXPECT_DOUBLE_EQ(all["f1_micro"], c.accuracy);
    EXPECT_DOUBLE_EQ(all["f1"], c.f1);
    EXPECT_DOUBLE_EQ(all["f1_macro"], c.f1_macro);
    EXPECT_NEAR(all["matthews_correlation"], c.matthews, 1e-15);
  }
}

TEST(Metrics, ArgmaxTakesTheFirstOfEquals) {
  const std::vector<float> scores = {1, 3, 3, 2};
  EXPECT_EQ(argmax(scores), 1);
}

}  // namespace
}  // namespace snug
