#include "plan/arena_layout.h"

#include "plan/memory_plan.h"

namespace snug {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kScalarBytes = kTensorAlignment;  // a handful of accumulators

}  // namespace

ArenaLayout lay_out_arena(const ParameterTable& parameters, const ArenaNeeds& needs) {
  ArenaLayout layout;
  const bool training = needs.use == ArenaUse::kTraining;
  for (const Parameter& p : parameters) {
    const bool copied = p.is_factor && needs.compute != DType::kF32 && (p.is_vector || !needs.converts_weights);
    layout.copy_offset.push_back(copied ? layout.copy_bytes : kNoOffset);
    if (copied) layout.copy_bytes += align_up(size_t(p.occupied()) * dtype_bytes(needs.compute));
    const bool kept = training || !copied || p.is_table;
    layout.parameter_offset.push_back(kept ? layout.parameter_bytes : kNoOffset);
    if (kept) layout.parameter_bytes += align_up(size_t(p.occupied()) * sizeof(float));
  }
  size_t end = layout.parameter_bytes;
  const auto take = [&](size_t& at, size_t bytes) {
    at = end;
    end += align_up(bytes);
  };
  if (training) {
    for (size_t* region : {&layout.gradients, &layout.first_moments, &layout.second_moments}) {
      take(*region, layout.parameter_bytes);
    }
  }
  take(layout.copies, layout.copy_bytes);
  take(layout.scalars, kScalarBytes);
  layout.table_bytes = needs.table_bytes;
  take(layout.tables, needs.table_bytes);
  layout.transient_bytes = needs.transient_bytes;
  take(layout.transient, needs.transient_bytes);
  layout.bytes = align_up(end, kPage);
  return layout;
}

}  // namespace snug
