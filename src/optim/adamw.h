// AdamW as PyTorch defines it (decoupled weight decay), one pass over the parameters, and the sum
// of squares that gradient clipping needs. Constants are doubles until the last moment: 1 - 0.999f
// is off by 1e-5.
#pragma once

#include <cstdint>
#include <span>

#include "optim/step.h"

namespace snug {

// What the update multiplies with, rounded once.
struct AdamWFactors {
  float gradient, keep, step_size, new_m, old_v, new_v, v_correction, epsilon;
};
AdamWFactors adamw_factors(const OptimizerStep& step);

// w -= lr * decay * w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// w -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
// Elementwise, hence independent of the number of threads.
void adamw(std::span<float> w, std::span<const float> g, std::span<float> m, std::span<float> v,
           const OptimizerStep& step);

// In fp64, over a fixed tree of sums, hence independent of the number of threads. NaN and infinity
// come through.
double sum_of_squares(std::span<const float> values);

}  // namespace snug
