// Stochastic gradient descent as PyTorch defines it: weight decay is part of the gradient, and with
// momentum the sum of earlier gradients is the state.
#pragma once

#include <span>

#include "optim/step.h"

namespace snug {

// What the update multiplies with, rounded once.
struct SgdFactors {
  float gradient, decay, momentum, learning_rate;
};
SgdFactors sgd_factors(const OptimizerStep& step);

// g += decay * w;  b = momentum * b + g;  w -= lr * b. Without momentum b is g and the span empty.
// Elementwise, hence independent of the number of threads.
void sgd(std::span<float> w, std::span<const float> g, std::span<float> b,
         const OptimizerStep& step);

}  // namespace snug
