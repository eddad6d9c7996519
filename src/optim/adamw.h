// AdamW as PyTorch defines it (decoupled weight decay), one pass over the parameters, and the sum
// of squares that gradient clipping needs. Constants are doubles until the last moment: 1 - 0.999f
// is off by 1e-5.
#pragma once

#include <cstdint>
#include <span>

namespace snug {

struct AdamWStep {
  double learning_rate = 5e-5;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;             // 1 at the first update
  double gradient_scale = 1.0;  // the gradient is multiplied with it: clipping
};

// What the update multiplies with, rounded once.
struct AdamWFactors {
  float gradient, keep, step_size, new_m, old_v, new_v, v_correction, epsilon;
};
AdamWFactors adamw_factors(const AdamWStep& step);

// w -= lr * decay * w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// w -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
// Elementwise, hence independent of the number of threads.
void adamw(std::span<float> w, std::span<const float> g, std::span<float> m, std::span<float> v,
           const AdamWStep& step);

// In fp64, over a fixed tree of sums, hence independent of the number of threads. NaN and infinity
// come through.
double sum_of_squares(std::span<const float> values);

}  // namespace snug
