// Classification metrics, streamed: memory grows with the number of classes, never with the number of examples.
// Definitions are scikit-learn's, with 0 for every 0/0.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace snug {

class ClassificationMetrics {
 public:
  explicit ClassificationMetrics(size_t classes);
  void add(int32_t expected, int32_t predicted);
  void reset();

  uint64_t examples() const { return examples_; }
  double accuracy() const;
  double f1_macro() const;  // over the classes that occur, expected or predicted
  double f1_micro() const { return accuracy(); }  // equal where every example has one label
  double f1(size_t positive_class) const;
  double matthews() const;
  // "accuracy", "f1" (of class 1 for two classes, macro otherwise), "f1_macro", "f1_micro", "matthews_correlation".
  std::map<std::string, double> all() const;

 private:
  uint64_t examples_ = 0, correct_ = 0;
  std::vector<uint64_t> expected_, predicted_, hits_;  // by class
};

int32_t argmax(std::span<const float> scores);  // the first of equals

}  // namespace snug
