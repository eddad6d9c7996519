// One model in one arena, one optimizer step at a time: begin, accumulate each micro-batch, update. Takes all its memory
// at construction.
#pragma once

#include <cstdint>
#include <span>

#include "model/weights.h"
#include "optim/adamw.h"
#include "plan/planner.h"
#include "runtime/arena.h"
#include "runtime/executor.h"

namespace snug {

struct StepResult {
  double loss = 0;           // mean over the step's examples
  double gradient_norm = 0;  // before clipping
};

class Stepper {
 public:
  // Both must outlive the stepper.
  Stepper(const Model& model, const Plan& plan);

  // `examples` of the whole step: micro-batches add up to their mean.
  void begin(uint64_t seed, uint64_t examples);
  void accumulate(const Batch& micro_batch);
  // Clips to `max_gradient_norm` (0: never) and applies AdamW; `adam.weight_decay` counts where the table says so.
  // A loss or gradient that is not finite is an error (kNumbers) and changes no weight.
  StepResult update(AdamWStep adam, double max_gradient_norm);

  Executor& scoring() { return scoring_; }
  const Executor& training() const { return training_; }
  std::span<float> weights(size_t parameter) const { return part(plan_.layout.weights, parameter); }
  std::span<float> gradients(size_t parameter) const { return part(plan_.layout.gradients, parameter); }
  // Whole regions, as a checkpoint holds them.
  std::span<float> all_weights() const { return region(plan_.layout.weights); }
  std::span<float> all_first_moments() const { return region(plan_.layout.first_moments); }
  std::span<float> all_second_moments() const { return region(plan_.layout.second_moments); }
  ParameterMemory weight_memory() const {
    return [this](size_t parameter) { return weights(parameter); };
  }
  const Arena& arena() const { return arena_; }

 private:
  std::span<float> region(size_t offset) const;
  std::span<float> part(size_t offset, size_t parameter) const;

  const Model& model_;
  const Plan& plan_;
  Arena arena_;
  Executor training_, scoring_;
  StepContext context_;
};

}  // namespace snug
