#include "runtime/engine.h"

namespace snug {
namespace {

constexpr int64_t kCleanStepsToGrow = 2000;  // as PyTorch's GradScaler

}  // namespace

void LossScale::after_step(bool applied) {
  failed_steps = applied ? 0 : failed_steps + 1;
  clean_steps = applied ? clean_steps + 1 : 0;
  if (!applied) scale /= 2;
  if (clean_steps < kCleanStepsToGrow) return;
  scale *= 2;
  clean_steps = 0;
}

Block Engine::placed(size_t inside_offset, size_t outside_offset, size_t bytes) {
  if (inside_offset != kNoOffset) return {&inside(), inside_offset, bytes};
  return {&outside(), outside_offset, bytes};
}

Block Engine::region(Region region) {
  const auto [found, fresh] = regions_.try_emplace(region);
  if (!fresh) return found->second.whole();
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    const Parameter& p = model_.parameters()[i];
    if (!p.trained) continue;
    const ParameterPlace& place = plan_.layout.parameters[i];
    const bool half = keeps_bfloat16(plan_.optimizer, p);
    const size_t exact = align_up(size_t(p.occupied()) * sizeof(float));
    switch (region) {
      case Region::kWeights:
        if (!half) found->second.add(exact_weight(i, exact));
        break;
      case Region::kHalves:
        if (half) {
          found->second.add(
              {&inside(), place.copy, align_up(size_t(p.occupied()) * dtype_bytes(DType::kBF16))});
        }
        break;
      case Region::kGradients:
        found->second.add(exact_gradient(i, exact));
        break;
      case Region::kState: {
        const size_t bytes = state_bytes(plan_.optimizer, p);
        if (bytes > 0) found->second.add(placed(place.state, place.outside_state, bytes));
        break;
      }
    }
  }
  return found->second.whole();
}

Block Engine::exact_weight(size_t parameter, size_t bytes) {
  const ParameterPlace& place = plan_.layout.parameters[parameter];
  if (!place.split) return placed(place.weight, place.outside_weight, bytes);
  const Block upper = {&inside(), place.copy, bytes / 2},
              lower = placed(place.weight, place.outside_weight, bytes / 2);
  return {&splits_.try_emplace(parameter, upper, lower).first->second, 0, bytes};
}

Block Engine::weight(size_t parameter) {
  const ParameterPlace& place = plan_.layout.parameters[parameter];
  if (place.weight == kNoOffset && place.outside_weight == kNoOffset) {
    return converted().at(place.copy, fp32_bytes(parameter));
  }
  const Parameter& p = model_.parameters()[parameter];
  return exact_weight(parameter, p.quantized ? p.quantized_bytes() : fp32_bytes(parameter));
}

Block Engine::gradient(size_t parameter) {
  return exact_gradient(parameter, fp32_bytes(parameter));
}

Block Engine::exact_gradient(size_t parameter, size_t bytes) {
  const ParameterPlace& place = plan_.layout.parameters[parameter];
  if (place.gradient_form != GradientForm::kRounded) {
    return placed(place.gradient, place.outside_gradient, bytes);
  }
  const Block halves = placed(place.gradient, place.outside_gradient, bytes / 2);
  return rounded_.try_emplace(parameter, *halves.memory, DType::kBF16)
      .first->second.at(halves.offset, bytes);
}

}  // namespace snug
