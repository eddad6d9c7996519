// Adafactor (Shazeer and Stern, 2018) as Hugging Face's Trainer runs it:
// transformers.optimization.Adafactor with scale_parameter and relative_step off, so the learning
// rate is the one that is given. The second moment of a matrix is kept as the means of its rows and
// of its columns; there is no first moment; an update is scaled down to a root mean square of one
// before the learning rate applies.
#pragma once

#include <cstdint>
#include <span>

#include "optim/step.h"

namespace snug {

inline constexpr double kAdafactorSmallest = 1e-30;  // added to squared gradients
inline constexpr double kAdafactorClip = 1.0;        // of the update's root mean square

// What a step mixes and multiplies with.
struct AdafactorFactors {
  double old_v, new_v;  // 1 - step^-0.8, and what is left to one
  float keep;           // 1 - lr * weight_decay
  double learning_rate;
  float gradient;
};
AdafactorFactors adafactor_factors(const OptimizerStep& step);

// With G = g^2 + 1e-30 and b = 1 - step^-0.8:
//   rows[i] = b rows[i] + (1 - b) mean_j G[i, j];  columns[j] = b columns[j] + (1 - b) mean_i G[i,
//   j] u[i, j] = g[i, j] / sqrt(rows[i] / mean(rows) * columns[j]);  u /= max(1, rms(u)) w -= lr *
//   decay * w;  w -= lr * u
// w and g are [rows.size(), columns.size()]. Independent of the number of threads.
void adafactor_matrix(std::span<float> w, std::span<const float> g, std::span<float> rows,
                      std::span<float> columns, const OptimizerStep& step);

// The same with a second moment for every element: u = g / sqrt(v).
void adafactor_vector(std::span<float> w, std::span<const float> g, std::span<float> v,
                      const OptimizerStep& step);

}  // namespace snug
