#include "plan/arena_layout.h"

#include "plan/memory_plan.h"

namespace snug {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kScalarBytes = kTensorAlignment;  // a handful of accumulators

}  // namespace

ArenaLayout lay_out_arena(const ParameterTable& parameters, ArenaUse use, size_t transient_bytes) {
  ArenaLayout layout;
  for (const Parameter& p : parameters) {
    layout.parameter_offset.push_back(layout.parameter_bytes);
    layout.parameter_bytes += align_up(size_t(p.size()) * sizeof(float));
  }
  size_t end = layout.parameter_bytes;
  if (use == ArenaUse::kTraining) {
    for (size_t* region : {&layout.gradients, &layout.first_moments, &layout.second_moments}) {
      *region = end;
      end += layout.parameter_bytes;
    }
  }
  layout.scalars = end;
  end += kScalarBytes;
  layout.transient = end;
  layout.transient_bytes = transient_bytes;
  layout.bytes = align_up(end + transient_bytes, kPage);
  return layout;
}

}  // namespace snug
