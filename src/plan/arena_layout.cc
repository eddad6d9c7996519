#include "plan/arena_layout.h"

#include <algorithm>

#include "core/memory.h"

namespace snug {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kScalarBytes = kTensorAlignment;  // a handful of accumulators

}  // namespace

ArenaLayout lay_out_arena(const ParameterTable& parameters, const ArenaNeeds& needs) {
  ArenaLayout layout;
  layout.only_pass = needs.only_pass;
  layout.parameters.resize(parameters.size());
  const auto is_trained = [&](const Parameter& p) {
    return needs.use == ArenaUse::kTraining && p.trained && !p.quantized;
  };
  const auto is_half = [&](const Parameter& p) {
    return is_trained(p) && keeps_bfloat16(needs.optimizer, p);
  };
  const auto is_split = [&](const Parameter& p) {
    return is_trained(p) && !is_half(p) && p.splits(needs.compute);
  };
  const auto has_copy = [&](const Parameter& p) {
    return !is_half(p) && !p.quantized && p.is_factor && needs.compute != DType::kF32 &&
           (p.is_vector || !needs.converts_weights || !is_trained(p) || is_split(p));
  };
  const auto state_outside = [&](const Parameter& p) {
    return is_trained(p) && needs.offload >= Offload::kState;
  };
  const auto gradient_outside = [&](const Parameter& p) {
    return is_trained(p) && needs.offload >= Offload::kGradients;
  };
  const auto gradient_form = [&](const Parameter& p) {
    if (!is_trained(p) || !p.rounds_gradient(needs.compute)) return GradientForm::kExact;
    return needs.only_pass ? GradientForm::kRounded : GradientForm::kRounds;
  };
  // Products read the copy; the weight itself is for the update alone.
  const auto weight_outside = [&](const Parameter& p) {
    return state_outside(p) && has_copy(p) && !p.is_table;
  };
  // Appends a region that holds bytes_of(parameter) of each parameter that has any.
  const auto place = [&](Stretch& region, size_t ParameterPlace::*offset, const auto& bytes_of) {
    region.offset = layout.bytes;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const size_t bytes = bytes_of(parameters[i]);
      if (bytes == 0) continue;
      layout.parameters[i].*offset = layout.bytes;
      layout.bytes += align_up(bytes);
    }
    region.bytes = layout.bytes - region.offset;
  };
  const auto exact_bytes = [](const Parameter& p) { return size_t(p.occupied()) * sizeof(float); };
  const auto weight_bytes = [&](const Parameter& p) {
    return is_split(p) ? exact_bytes(p) / 2 : exact_bytes(p);
  };
  const auto gradient_bytes = [&](const Parameter& p) {
    return gradient_form(p) == GradientForm::kRounded ? exact_bytes(p) / 2 : exact_bytes(p);
  };
  place(layout.trained, &ParameterPlace::weight, [&](const Parameter& p) {
    return is_trained(p) && !is_half(p) && !weight_outside(p) ? weight_bytes(p) : 0;
  });
  place(layout.halves, &ParameterPlace::copy, [&](const Parameter& p) {
    return is_half(p) ? size_t(p.occupied()) * dtype_bytes(DType::kBF16) : 0;
  });
  place(layout.others, &ParameterPlace::weight, [&](const Parameter& p) {
    if (p.quantized) return p.quantized_bytes();
    return !is_trained(p) && (!has_copy(p) || p.is_table) ? exact_bytes(p) : 0;
  });
  for (size_t i = 0; i < parameters.size(); ++i) {
    ParameterPlace& at = layout.parameters[i];
    if (parameters[i].quantized) at.scales = at.weight + parameters[i].scales_offset();
    at.split = is_split(parameters[i]);
    at.gradient_form = gradient_form(parameters[i]);
  }
  place(layout.gradients, &ParameterPlace::gradient, [&](const Parameter& p) {
    return is_trained(p) && !gradient_outside(p) ? gradient_bytes(p) : 0;
  });
  place(layout.states, &ParameterPlace::state, [&](const Parameter& p) {
    return is_trained(p) && !state_outside(p) ? state_bytes(needs.optimizer, p) : 0;
  });
  place(layout.copies, &ParameterPlace::copy, [&](const Parameter& p) {
    return has_copy(p) ? size_t(p.occupied()) * dtype_bytes(needs.compute) : 0;
  });
  const auto take = [&](Stretch& region, size_t bytes) {
    region = {layout.bytes, bytes};
    layout.bytes += align_up(bytes);
  };
  take(layout.scalars, kScalarBytes);
  take(layout.tables, needs.table_bytes);
  size_t transient_bytes = needs.transient_bytes;
  for (const Parameter& p : parameters) {
    if (needs.state_visits && state_outside(p)) {
      transient_bytes = std::max(transient_bytes, state_bytes(needs.optimizer, p));
    }
  }
  take(layout.transient, transient_bytes);
  layout.bytes = align_up(layout.bytes, kPage);
  const auto put = [&](size_t& offset, size_t bytes) {
    offset = layout.outside_bytes;
    layout.outside_bytes += align_up(bytes, kPage);
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (weight_outside(p)) put(layout.parameters[i].outside_weight, weight_bytes(p));
    if (gradient_outside(p)) put(layout.parameters[i].outside_gradient, gradient_bytes(p));
    if (state_outside(p)) put(layout.parameters[i].outside_state, state_bytes(needs.optimizer, p));
  }
  for (const size_t bytes : needs.stowed_bytes) put(layout.stowed.emplace_back(), bytes);
  return layout;
}

}  // namespace snug
