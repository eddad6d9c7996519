// What is to be run, and one way to run it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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
  // Tokens of an example on average: how well micro-batches fill; 0: not known.
  int64_t mean_length = 0;
  int64_t sequences_per_example = 1;  // at most
  int64_t label_words = 1;            // of a sequence
  TargetRule target_rule = TargetRule::kNone;
  double masked_share = 0;
  double epochs = 1;  // how often an example is seen
  // Every micro-batch has as many tokens as it can: a device prepares for nothing less.
  bool one_size = false;

  bool lengths_vary() const { return 10 * mean_length < 9 * longest; }
  // The most that a micro-batch of so many tokens can have.
  Dims dims(int64_t tokens) const;
};

// What is kept outside of the arena of what belongs to weights: in pinned memory of the host, or on
// a CPU run in a file.
enum class Offload : uint8_t {
  kNone,
  kState,      // optimizer state, and weights that products do not read
  kGradients,  // and gradients; only beside a GPU
};

// One way to run, besides the capacity of micro-batches.
struct PlanChoice {
  Recomputation recompute{};
  int64_t head_chunk = 0;  // target rows; 0 where there is no language model's head
  bool converts_weights = false;
  Offload offload = Offload::kNone;
  bool activations_outside = false;  // what layers keep that are recomputed whole

  auto operator<=>(const PlanChoice&) const = default;
};

// "none", or names joined by commas: "state", "gradients" (and state), "activations".
// parse_offload() returns false for a name that there is not.
std::string offload_text(const PlanChoice& choice);
bool parse_offload(std::string_view text, PlanChoice& choice);

}  // namespace snug
