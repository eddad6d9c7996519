#include "train/stepper.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {
namespace {

constexpr int64_t kZeroGrain = 1 << 20;  // bytes: less is not worth a thread

}  // namespace

Stepper::Stepper(const Model& model, const Plan& plan)
    : model_(model),
      plan_(plan),
      arena_(plan.arena_bytes),
      training_(plan.step->graph, plan.step_memory, plan.layout, arena_.base()),
      scoring_(plan.scoring->graph, plan.scoring_memory, plan.layout, arena_.base()) {}

std::span<float> Stepper::region(size_t offset) const {
  return {reinterpret_cast<float*>(arena_.base() + offset), plan_.layout.parameter_bytes / sizeof(float)};
}

std::span<float> Stepper::part(size_t offset, size_t parameter) const {
  const size_t first = plan_.layout.parameter_offset[parameter] / sizeof(float);
  return region(offset).subspan(first, size_t(model_.parameters()[parameter].size()));
}

void Stepper::begin(uint64_t seed, uint64_t examples) {
  std::byte* const gradients = arena_.base() + plan_.layout.gradients;
  over_ranges(int64_t(plan_.layout.parameter_bytes), kZeroGrain,
              [&](int64_t begin, int64_t end) { std::memset(gradients + begin, 0, size_t(end - begin)); });
  *training_.scalar(plan_.step->loss) = 0;
  context_ = {.seed = seed, .training = true, .loss_scale = 1.0f / float(examples)};
}

void Stepper::accumulate(const Batch& micro_batch) { training_.run(micro_batch, context_); }

StepResult Stepper::update(AdamWStep adam, double max_gradient_norm) {
  const StepResult result{*training_.scalar(plan_.step->loss), std::sqrt(sum_of_squares(region(plan_.layout.gradients)))};
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) {
    throw Error(ErrorKind::kNumbers,
                fmt::format("at step {} the loss is {} and the norm of the gradient {}", adam.step, result.loss,
                            result.gradient_norm),
                "lower --learning-rate, or look for broken weights; the last checkpoint is kept");
  }
  // PyTorch's clip_grad_norm_: the small constant keeps a zero norm harmless.
  const double clip = max_gradient_norm > 0 ? std::min(1.0, max_gradient_norm / (result.gradient_norm + 1e-6)) : 1.0;
  adam.gradient_scale = clip;
  const double decay = adam.weight_decay;
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    adam.weight_decay = model_.parameters()[i].decays ? decay : 0.0;
    adamw(weights(i), gradients(i), part(plan_.layout.first_moments, i), part(plan_.layout.second_moments, i), adam);
  }
  return result;
}

}  // namespace snug
