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

size_t region_offset(const ArenaLayout& layout, Region region) {
  switch (region) {
    case Region::kWeights: return layout.weights;
    case Region::kGradients: return layout.gradients;
    case Region::kFirstMoments: return layout.first_moments;
    case Region::kSecondMoments: return layout.second_moments;
  }
  return 0;
}

}  // namespace snug
