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

const Stretch& region_of(const ArenaLayout& layout, Region region) {
  switch (region) {
    case Region::kWeights: return layout.trained;
    case Region::kHalves: return layout.halves;
    case Region::kGradients: return layout.gradients;
    case Region::kState: break;
  }
  return layout.states;
}

}  // namespace snug
