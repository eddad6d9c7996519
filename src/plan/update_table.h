// How a GPU updates parameters: tables of what is where, made once, and what changes from step to
// step. The structures are what engine and kernels exchange through the arena (src/cuda/update.h);
// making them needs no GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "optim/optimizer.h"
#include "plan/arena_layout.h"

namespace snug {

// A stretch of one trained parameter, at most kUpdateChunk elements. Offsets count bytes from where
// UpdateFacts says; -1: not there. Arrays begin at multiples of 256 bytes, chunks at multiples of
// kUpdateChunk elements of them.
inline constexpr int32_t kUpdateChunk = 4096;
struct UpdateChunk {
  int64_t weight = -1;  // fp32, or lower halves
  int64_t copy = -1;    // in the compute type, or the weight itself where it exists in bf16 alone
  int64_t gradient = -1;
  int64_t first = -1, second = -1;              // moments; SGD has a first one or none
  int64_t first_scale = -1, second_scale = -1;  // of 8-bit moments
  int64_t begin = 0;                            // element of the parameter
  int32_t parameter = 0, count = 0;
  StateFormat format = StateFormat::kNone;
  bool split = false;           // see ParameterPlace
  bool decays = false;          // whether weight decay applies
  bool keeps_gradient = false;  // the next step writes it without looking: it is not set to zero
  GradientForm gradient_form = GradientForm::kExact;  // with kRounded it is kept in any case
};

// A tensor as Adafactor sees it: all of it at once. Offsets as above.
struct UpdateTensor {
  int64_t weight = -1, copy = -1, gradient = -1, state = -1;
  int64_t rows = 0, cols = 0;  // rows is 0 for a vector
  bool split = false, decays = false, keeps_gradient = false;
  GradientForm gradient_form = GradientForm::kExact;
};

struct UpdateFacts {
  Optimizer optimizer = Optimizer::kAdamW;
  DType compute = DType::kF32;
  int64_t arena = 0, outside = 0;  // where they begin, added to all offsets
};
size_t update_chunk_count(const ParameterTable& parameters);
std::vector<UpdateChunk> update_chunks(const ParameterTable& parameters, const ArenaLayout& layout,
                                       const UpdateFacts& facts);
// Only for Adafactor.
std::vector<UpdateTensor> update_tensors(const ParameterTable& parameters,
                                         const ArenaLayout& layout, const UpdateFacts& facts);

// What changes from step to step; uploaded before each update. src/optim/ has the formulas.
struct UpdateFactors {
  float keep = 1.0f;  // 1 - lr * weight_decay
  float step_size = 0.0f, new_m = 0.1f, old_v = 0.999f, new_v = 0.001f, v_correction = 1.0f,
        epsilon = 1e-8f;
  float learning_rate = 0.0f, momentum = 0.0f, decay = 0.0f;
  float max_norm = 0.0f;        // 0: no clipping
  float gradient_scale = 1.0f;  // divides out the fp16 loss scale before norm and update
  uint32_t key[2] = {};         // of draws for stochastic rounding
  uint64_t step = 0;
};
UpdateFactors update_factors(Optimizer optimizer, const OptimizerStep& step, double max_norm);

// What an update leaves for the host.
struct UpdateResult {
  double loss = 0;           // as accumulated; the update sets the accumulator back to zero
  double gradient_norm = 0;  // before clipping, after gradient_scale
  int32_t applied = 0;       // 0: loss or norm was not finite, so no weight and no state changed
  float clip = 1.0f;         // what clipping multiplied the gradient with
};
inline constexpr int kNormPartials = 1024;
// Which gradients of a chunk are not all zero, as its norm finds out: one byte per warp that reads
// it. Its lower bits are for this step, the upper ones for all since moments were zero.
inline constexpr size_t kSeenBytes = 8;

}  // namespace snug
