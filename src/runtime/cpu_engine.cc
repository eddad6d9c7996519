#include "runtime/cpu_engine.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "ops/parallel.h"
#include "optim/adamw.h"

namespace snug {
namespace {

constexpr int64_t kZeroGrain = 1 << 20;  // bytes: less is not worth a thread

}  // namespace

CpuEngine::CpuEngine(const Model& model, const Plan& plan, uint64_t seed,
                     const std::filesystem::path& scratch)
    : Engine(model, plan),
      seed_(seed),
      arena_(plan.arena_bytes),
      outside_(scratch, plan.layout.outside_bytes),
      halves_(arena_, DType::kBF16),
      step_(plan.step->graph, plan.step_memory, plan.layout, arena_.base(), &outside_) {
  if (plan.scoring) {
    scoring_ = std::make_unique<Executor>(plan.scoring->graph, plan.scoring_memory, plan.layout,
                                          arena_.base());
  }
  if (plan.prefix) {
    prefix_ = std::make_unique<Executor>(plan.prefix->graph, plan.prefix_memory, plan.layout,
                                         arena_.base());
  }
}

std::span<float> CpuEngine::floats(size_t offset, size_t bytes) const {
  return {reinterpret_cast<float*>(arena_.base() + offset), bytes / sizeof(float)};
}

void CpuEngine::begin(double targets) {
  std::byte* const gradients = arena_.base() + plan_.layout.gradients.offset;
  over_ranges(int64_t(plan_.layout.gradients.bytes), kZeroGrain, [&](int64_t begin, int64_t end) {
    std::memset(gradients + begin, 0, size_t(end - begin));
  });
  *step_.scalar(plan_.step->loss) = 0;
  context_ = {.seed = seed_, .training = true, .loss_scale = 1.0f / float(targets)};
}

void CpuEngine::accumulate(const Batch& micro_batch) {
  step_.run(micro_batch, context_);
  last_ = &step_;
}

void CpuEngine::update(const OptimizerStep& given, double max_gradient_norm) {
  const Stretch& gradients = plan_.layout.gradients;
  result_ = {*step_.scalar(plan_.step->loss),
             std::sqrt(sum_of_squares(floats(gradients.offset, gradients.bytes))), false};
  if (!std::isfinite(result_.loss) || !std::isfinite(result_.gradient_norm)) return;
  result_.applied = true;
  OptimizerStep step = given;
  // PyTorch's clip_grad_norm_: the small constant keeps a zero norm harmless.
  if (max_gradient_norm > 0) {
    step.gradient_scale = std::min(1.0, max_gradient_norm / (result_.gradient_norm + 1e-6));
  }
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    const Parameter& parameter = model_.parameters()[i];
    if (!parameter.trained) continue;
    const ParameterPlace& place = plan_.layout.parameters[i];
    std::byte* const weights =
        arena_.base() + (place.weight == kNoOffset ? place.copy : place.weight);
    const bool away = place.outside_state != kNoOffset;
    // No activation is needed any more: their region is where the state from outside is worked on.
    const std::span<std::byte> state{
        arena_.base() + (away ? plan_.layout.transient.offset : place.state),
        state_bytes(plan_.optimizer, parameter)};
    if (away) outside_.read(place.outside_state, state);
    update_parameter(plan_.optimizer, parameter, i, weights, floats(place.gradient, fp32_bytes(i)),
                     state.data(), step);
    if (away) outside_.write(place.outside_state, state);
  }
}

std::span<const std::byte> CpuEngine::run_prefix(const Batch& micro_batch) {
  prefix_->run(micro_batch, {});
  const Tensor states = prefix_->tensor(plan_.prefix->result);
  return std::as_bytes(std::span(states.f32(), size_t(states.size())));
}

std::span<std::byte> CpuEngine::given_states(const Dims& dims) {
  const ValueId given = plan_.step->given;
  return {static_cast<std::byte*>(step_.tensor(given).data),
          plan_.step->graph.value(given).desc.bytes(dims)};
}

void CpuEngine::score(const Batch& micro_batch) {
  last_ = scoring_ ? scoring_.get() : &step_;
  last_->run(micro_batch, {});
}

double CpuEngine::take_loss() {
  const StepGraph& graph = plan_.scoring ? *plan_.scoring : *plan_.step;
  double* const loss = (scoring_ ? *scoring_ : step_).scalar(graph.loss);
  const double sum = *loss;
  *loss = 0;
  return sum;
}

std::span<const float> CpuEngine::result() {
  SNUG_CHECK(last_ != nullptr);
  const Tensor tensor = last_->tensor(last_ == &step_ ? plan_.step->result : plan_.scoring->result);
  return {tensor.f32(), size_t(tensor.size())};
}

}  // namespace snug
