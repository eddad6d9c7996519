#include "metrics/probabilities.h"

#include <algorithm>
#include <cmath>

namespace snug {

int32_t argmax(std::span<const float> scores) {
  return int32_t(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

void softmax(std::span<const float> scores, std::vector<double>& out) {
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  out.clear();
  for (const float x : scores) sum += out.emplace_back(std::exp(double(x) - top));
  for (double& p : out) p /= sum;
}

// Neither branch overflows.
double sigmoid(double score) {
  if (score >= 0) return 1 / (1 + std::exp(-score));
  const double e = std::exp(score);
  return e / (1 + e);
}

}  // namespace snug
