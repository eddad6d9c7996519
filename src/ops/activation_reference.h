// The activations of linear layers in fp64, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/linear.h"

namespace snug {

inline double activate(Activation activation, double x) {
  const double z = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(z));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kKeptSlope:
      break;
  }
  return NAN;
}

inline double slope(Activation activation, double x) {
  const double c = std::sqrt(2.0 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  switch (activation) {
    case Activation::kNone:
      return 1.0;
    case Activation::kGelu:
      return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    case Activation::kGeluTanh:
      return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
    case Activation::kTanh:
      return 1.0 - std::tanh(x) * std::tanh(x);
    case Activation::kRelu:
      return x > 0.0 ? 1.0 : 0.0;
    case Activation::kKeptSlope:
      return x;
  }
  return NAN;
}

inline constexpr Activation kAllActivations[] = {Activation::kNone, Activation::kGelu,
                                                 Activation::kGeluTanh, Activation::kTanh,
                                                 Activation::kRelu};

}  // namespace snug
