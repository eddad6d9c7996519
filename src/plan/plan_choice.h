// What is to be run, and one way to run it.
#pragma once

#include <cstdint>

#include "graph/op.h"
#include "graph/recompute.h"

namespace snug {

// Which tokens have something to predict.
enum class TargetRule : uint8_t {
  kNone,          // classification
  kEveryToken,    // causal language modelling: all but the last of each sequence
  kMaskedTokens,  // a share of each sequence, at least one
  kLastToken,     // generation
};

// What is to be run.
struct Workload {
  int64_t batch_size = 0;   // examples of a step
  int64_t longest = 0;      // tokens of the longest example
  int64_t step_tokens = 0;  // most tokens a step can have
  int64_t mean_length = 0;  // tokens of an example on average: how well micro-batches fill; 0: not known
  int64_t sequences_per_example = 1;  // at most
  TargetRule target_rule = TargetRule::kNone;
  double masked_share = 0;
  bool one_size = false;  // every micro-batch has as many tokens as it can: a device prepares for nothing less

  // The most that a micro-batch of so many tokens can have.
  Dims dims(int64_t tokens) const;
};

// One way to run, besides the capacity of micro-batches.
struct PlanChoice {
  Recomputation recompute{};
  int64_t head_chunk = 0;  // target rows; 0 where there is no language model's head
  bool converts_weights = false;

  auto operator<=>(const PlanChoice&) const = default;
};

}  // namespace snug
