// Where everything lies inside the arena:
//   trained weights | halves | other weights | gradients | optimizer state | copies | scalars |
//   device tables | transient region
// Halves are trained weights that exist in bf16 alone, where the optimizer keeps them so. Copies
// are the weights that products read, in the type they compute in; there are none in fp32. A bf16
// copy of a trained matrix is the upper half of the weight itself: among the trained weights lies
// the lower one alone. The update takes the gradients of such matrices rounded to bf16, as what
// they are made from is: micro-batches add to them in fp32, but the only one of a step writes them
// so. What is not trained lies there only in the types it is read in, and neither has a gradient
// nor optimizer state: the same holds for all weights in inference.
#pragma once

#include <cstddef>
#include <vector>

#include "core/dtype.h"
#include "model/parameters.h"
#include "optim/optimizer.h"
#include "plan/plan_choice.h"

namespace snug {

inline constexpr size_t kNoOffset = size_t(-1);

// A part of the arena.
struct Stretch {
  size_t offset = 0, bytes = 0;
};

// How a gradient lies in memory, and how the update takes it.
enum class GradientForm : uint8_t {
  kExact,    // fp32
  kRounds,   // fp32, of which the update takes the nearest bf16 numbers
  kRounded,  // these themselves
};

// Where one parameter lies in the arena; kNoOffset: not there.
struct ParameterPlace {
  // fp32; int8 where it is quantised; the lower halves, see split_float(), where it is split.
  size_t weight = kNoOffset;
  size_t scales = kNoOffset;  // of int8
  // In the compute type; the weight itself where it exists in bf16 alone, its upper halves where it
  // is split.
  size_t copy = kNoOffset;
  bool split = false;
  size_t gradient = kNoOffset;
  GradientForm gradient_form = GradientForm::kExact;
  size_t state = kNoOffset;  // the optimizer's
  // The same outside of the arena.
  size_t outside_weight = kNoOffset, outside_gradient = kNoOffset, outside_state = kNoOffset;
};

struct ArenaLayout {
  std::vector<ParameterPlace> parameters;
  Stretch trained, halves, others, gradients, states, copies, scalars;
  Stretch tables;  // what a device keeps besides: micro-batches, chunks of the update
  Stretch transient;
  bool only_pass = false;      // see ArenaNeeds
  size_t bytes = 0;            // whole pages
  std::vector<size_t> stowed;  // outside: by the numbers of Graph::stowed()
  size_t outside_bytes = 0;
};

enum class ArenaUse { kTraining, kInference };

struct ArenaNeeds {
  ArenaUse use = ArenaUse::kTraining;
  DType compute = DType::kF32;
  // Trained matrices that are not split are converted when used: they have no copies.
  bool converts_weights = false;
  Optimizer optimizer = Optimizer::kAdamW;
  Offload offload = Offload::kNone;
  // A step never has more than one micro-batch: products write gradients of weights, and add to
  // nothing.
  bool only_pass = false;
  bool state_visits = false;  // state that lies outside comes into the transient region, a
                              // parameter's at a time, to be updated
  size_t transient_bytes = 0, table_bytes = 0;
  std::vector<size_t> stowed_bytes{};
};

ArenaLayout lay_out_arena(const ParameterTable& parameters, const ArenaNeeds& needs);

}  // namespace snug
