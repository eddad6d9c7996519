// What an update needs to know besides weights, gradients and state; each optimizer takes from it
// what it uses.
#pragma once

#include <cstdint>

namespace snug {

struct OptimizerStep {
  double learning_rate = 5e-5;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.9;        // of SGD
  int64_t step = 1;             // 1 at the first update
  uint64_t seed = 0;            // of stochastic rounding
  double gradient_scale = 1.0;  // the gradient is multiplied with it: clipping
};

}  // namespace snug
