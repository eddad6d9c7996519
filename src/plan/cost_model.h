// How long a step takes under a choice. The figures are either measured on the device
// (train/calibration.h) or derived from arithmetic and memory traffic at rates that were measured
// once; only their ratios matter for choosing, so the derived ones never become a prediction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/plan_choice.h"

namespace snug {

struct PlanRequest;

// In seconds.
struct Speed {
  bool measured = false;
  // A micro-batch, whatever its size: weights are read, kernels launched.
  double pass_layer = 0, pass_rest = 0;
  // A token, forward and backward: in one layer; in embeddings and head.
  double token_layer = 0, token_rest = 0;
  // By layer, of token_layer and pass_layer: frozen weights have no gradient, and layers with
  // nothing trained in or before them no backward at all.
  std::vector<double> shares;
  double last_layer = 1;  // of what a layer takes, the last one's: a classifier looks at one row of
                          // a text behind its attention
  std::array<double, kPartNames.size()>
      again{};  // a token in one layer, by part, in the order of kPartNames
  double pass_teacher = 0, token_teacher = 0;  // a teacher's forward, all of it
  double chunk = 0;                            // one more chunk of a language model's head
  double conversion = 0;  // a micro-batch whose weights are converted when used
  double update = 0;      // of all parameters, once a step

  // Of making parts of a layer again, a token.
  double recomputing(const Parts& parts) const;
  bool has_backward(size_t layer) const { return shares[layer] > kForwardShare; }
  static constexpr double kForwardShare = 1.0 / 3;
};

// From the model's shape alone.
Speed derived_speed(const PlanRequest& request);

// A step of average length, in micro-batches of at most `capacity` tokens.
double step_seconds(const PlanRequest& request, const Speed& speed, const PlanChoice& choice,
                    int64_t capacity);
// Tokens of such a step.
int64_t mean_step_tokens(const Workload& workload);

}  // namespace snug
