// What the tests of optimizers share: random numbers, a number of threads for a while, and a small
// problem to train.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "optim/step.h"

namespace snug {

inline constexpr double kEps = std::numeric_limits<float>::epsilon();

inline std::vector<float> normals(size_t n, uint64_t seed, float deviation = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = deviation * normal(random);
  return values;
}

// What `run` returns with so many threads.
template <class Run>
auto with_threads(int threads, const Run& run) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  auto result = run();
  omp_set_num_threads(before);
  return result;
}

// Softmax regression on noisy rows of a hidden matrix: 80 classes of 64 inputs whose sizes span
// three decades, so that gradients do too.
class Regression {
 public:
  static constexpr size_t kInputs = 64, kClasses = 80, kRows = 128;

  Regression() : inputs_(normals(kRows * kInputs, 1)) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] *= std::pow(10.0f, -3.0f * float(i % kInputs) / float(kInputs));
    }
    const std::vector<float> hidden = normals(kClasses * kInputs, 2);
    std::vector<double> scores(kClasses);
    for (size_t r = 0; r < kRows; ++r) {
      score(hidden, r, scores);
      labels_.push_back(size_t(std::max_element(scores.begin(), scores.end()) - scores.begin()));
    }
  }

  // The mean loss of weights [kClasses, kInputs], and its gradient.
  double loss(const std::vector<float>& weights, std::vector<float>& gradient) const {
    gradient.assign(weights.size(), 0.0f);
    double total = 0.0;
    std::vector<double> scores(kClasses);
    for (size_t r = 0; r < kRows; ++r) {
      score(weights, r, scores);
      double sum = 0.0;
      for (double s : scores) sum += std::exp(s);
      total += std::log(sum) - scores[labels_[r]];
      for (size_t c = 0; c < kClasses; ++c) {
        const double d =
            (std::exp(scores[c]) / sum - (c == labels_[r] ? 1.0 : 0.0)) / double(kRows);
        for (size_t i = 0; i < kInputs; ++i) {
          gradient[c * kInputs + i] += float(d * inputs_[r * kInputs + i]);
        }
      }
    }
    return total / double(kRows);
  }

  // The loss after `steps` updates, each update(weights, gradient, OptimizerStep).
  template <class Update>
  double train(int64_t steps, double learning_rate, const Update& update) const {
    std::vector<float> weights(kClasses * kInputs), gradient;
    for (int64_t step = 1; step <= steps; ++step) {
      loss(weights, gradient);
      const double rate = learning_rate * double(steps - step + 1) / double(steps);
      update(weights, gradient, OptimizerStep{.learning_rate = rate, .step = step, .seed = 7});
    }
    return loss(weights, gradient);
  }

 private:
  void score(const std::vector<float>& weights, size_t row, std::vector<double>& scores) const {
    for (size_t c = 0; c < kClasses; ++c) {
      scores[c] = 0.0;
      for (size_t i = 0; i < kInputs; ++i) {
        scores[c] += double(weights[c * kInputs + i]) * double(inputs_[row * kInputs + i]);
      }
    }
  }

  std::vector<float> inputs_;
  std::vector<size_t> labels_;
};

}  // namespace snug
