#include "optim/optimizer.h"

#include "core/memory.h"

namespace snug {

size_t moment_bytes(const Parameter& parameter) { return align_up(size_t(parameter.occupied()) * sizeof(float)); }

size_t state_bytes(Optimizer optimizer, const Parameter& parameter) {
  switch (optimizer) {
    case Optimizer::kAdamW: return 2 * moment_bytes(parameter);
  }
  return 0;
}

}  // namespace snug
