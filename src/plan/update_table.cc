#include "plan/update_table.h"

#include <algorithm>

#include "optim/adafactor.h"
#include "optim/adamw.h"
#include "optim/adamw_8bit.h"
#include "optim/adamw_bf16.h"
#include "optim/rounding.h"
#include "optim/sgd.h"

namespace snug {
namespace {

constexpr size_t kHalfBytes = 2;

// Where element `begin` of an array lies.
int64_t element_at(int64_t array, int64_t begin, size_t element_bytes) {
  return array < 0 ? -1 : array + begin * int64_t(element_bytes);
}

// Where the arrays of a parameter begin; -1: not there.
struct Arrays {
  int64_t weight, copy, gradient, state;
  size_t weight_bytes, gradient_bytes;  // of an element

  Arrays(const ParameterPlace& place, const UpdateFacts& facts)
      : weight(at(place.weight, place.outside_weight, facts)),
        copy(at(place.copy, kNoOffset, facts)),
        gradient(at(place.gradient, place.outside_gradient, facts)),
        state(at(place.state, place.outside_state, facts)),
        weight_bytes(place.split ? kHalfBytes : sizeof(float)),
        gradient_bytes(place.gradient_form == GradientForm::kRounded ? kHalfBytes : sizeof(float)) {
  }

 private:
  static int64_t at(size_t inside, size_t outside, const UpdateFacts& facts) {
    if (inside != kNoOffset) return facts.arena + int64_t(inside);
    return outside == kNoOffset ? -1 : facts.outside + int64_t(outside);
  }
};

// Gradients outside are fetched as zeros by the first micro-batch of a step.
bool keeps_gradient(const Parameter& p, const ParameterPlace& place, const ArenaLayout& layout) {
  return place.outside_gradient != kNoOffset || (layout.only_pass && p.is_factor && !p.is_vector);
}

void place_state(UpdateChunk& chunk, const Parameter& p, int64_t state) {
  const auto at = [&](size_t offset, size_t element_bytes) {
    return element_at(state + int64_t(offset), chunk.begin, element_bytes);
  };
  switch (chunk.format) {
    case StateFormat::kNone:
    case StateFormat::kFactored:
      return;
    case StateFormat::kMomentum:
      chunk.first = at(0, sizeof(float));
      return;
    case StateFormat::kMoments:
      chunk.first = at(0, sizeof(float));
      chunk.second = at(moment_bytes(p), sizeof(float));
      return;
    case StateFormat::kHalfMoments:
      chunk.first = at(0, kHalfBytes);
      chunk.second = at(half_moment_layout(p.size()).second, kHalfBytes);
      return;
    case StateFormat::kEightBit: {
      const EightBitLayout layout = eight_bit_layout(p.size());
      chunk.first = at(0, 1);
      chunk.second = at(layout.second, 1);
      chunk.first_scale = element_at(state + int64_t(layout.first_scales),
                                     chunk.begin / kMomentBlock, sizeof(float));
      chunk.second_scale = element_at(state + int64_t(layout.second_scales),
                                      chunk.begin / kMomentBlock, sizeof(float));
      return;
    }
  }
}

}  // namespace

size_t update_chunk_count(const ParameterTable& parameters) {
  size_t count = 0;
  for (const Parameter& p : parameters) {
    count += p.trained ? size_t((p.size() + kUpdateChunk - 1) / kUpdateChunk) : 0;
  }
  return count;
}

std::vector<UpdateChunk> update_chunks(const ParameterTable& parameters, const ArenaLayout& layout,
                                       const UpdateFacts& facts) {
  std::vector<UpdateChunk> chunks;
  chunks.reserve(update_chunk_count(parameters));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!p.trained) continue;
    const ParameterPlace& place = layout.parameters[i];
    const Arrays arrays(place, facts);
    const size_t copy_bytes =
        keeps_bfloat16(facts.optimizer, p) ? kHalfBytes : dtype_bytes(facts.compute);
    for (int64_t begin = 0; begin < p.size(); begin += kUpdateChunk) {
      chunks.push_back({.weight = element_at(arrays.weight, begin, arrays.weight_bytes),
                        .copy = element_at(arrays.copy, begin, copy_bytes),
                        .gradient = element_at(arrays.gradient, begin, arrays.gradient_bytes),
                        .begin = begin,
                        .parameter = int32_t(i),
                        .count = int32_t(std::min<int64_t>(kUpdateChunk, p.size() - begin)),
                        .format = state_format(facts.optimizer, p),
                        .split = place.split,
                        .decays = p.decays,
                        .keeps_gradient = keeps_gradient(p, place, layout),
                        .gradient_form = place.gradient_form});
      place_state(chunks.back(), p, arrays.state);
    }
  }
  return chunks;
}

std::vector<UpdateTensor> update_tensors(const ParameterTable& parameters,
                                         const ArenaLayout& layout, const UpdateFacts& facts) {
  std::vector<UpdateTensor> tensors;
  if (facts.optimizer != Optimizer::kAdafactor) return tensors;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!p.trained) continue;
    const ParameterPlace& place = layout.parameters[i];
    const Arrays arrays(place, facts);
    for (size_t n = 0; n < adafactor_part_count(p); ++n) {
      const AdafactorPart part = adafactor_part(p, n);
      tensors.push_back({.weight = element_at(arrays.weight, part.first, arrays.weight_bytes),
                         .copy = element_at(arrays.copy, part.first, dtype_bytes(facts.compute)),
                         .gradient = element_at(arrays.gradient, part.first, arrays.gradient_bytes),
                         .state = arrays.state + int64_t(part.state),
                         .rows = part.rows,
                         .cols = part.cols,
                         .split = place.split,
                         .decays = p.decays,
                         .keeps_gradient = keeps_gradient(p, place, layout),
                         .gradient_form = place.gradient_form});
    }
  }
  return tensors;
}

UpdateFactors update_factors(Optimizer optimizer, const OptimizerStep& step, double max_norm) {
  const AdamWFactors adamw = adamw_factors(step);
  const SgdFactors sgd = sgd_factors(step);
  const RoundingDraws draws = rounding_draws(step.seed, step.step, 0);
  UpdateFactors factors{.keep = adamw.keep,
                        .step_size = adamw.step_size,
                        .new_m = adamw.new_m,
                        .old_v = adamw.old_v,
                        .new_v = adamw.new_v,
                        .v_correction = adamw.v_correction,
                        .epsilon = adamw.epsilon,
                        .learning_rate = sgd.learning_rate,
                        .momentum = sgd.momentum,
                        .decay = sgd.decay,
                        .max_norm = float(max_norm),
                        .gradient_scale = float(step.gradient_scale),
                        .key = {draws.key[0], draws.key[1]},
                        .step = draws.step};
  if (optimizer == Optimizer::kAdafactor) {
    const AdafactorFactors adafactor = adafactor_factors(step);
    factors.old_v = float(adafactor.old_v);
    factors.new_v = float(adafactor.new_v);
  }
  return factors;
}

}  // namespace snug
