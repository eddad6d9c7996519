// From a model's scores to a decision and probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace snug {

int32_t argmax(std::span<const float> scores);  // the first of equals

// In fp64; `out` is overwritten.
void softmax(std::span<const float> scores, std::vector<double>& out);
double sigmoid(double score);

}  // namespace snug
