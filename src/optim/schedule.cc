#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace snug {

double Schedule::rate(uint64_t step) const {
  if (step < warmup_steps) return peak * double(step) / double(std::max<uint64_t>(1, warmup_steps));
  if (kind == ScheduleKind::kConstant) return peak;
  const double span =
      double(std::max<uint64_t>(1, total_steps - std::min(total_steps, warmup_steps)));
  const double done = double(step - warmup_steps) / span;
  if (kind == ScheduleKind::kLinear) return peak * std::max(0.0, 1.0 - done);
  return peak * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

ScheduleKind parse_schedule(std::string_view name) {
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "cosine") return ScheduleKind::kCosine;
  if (name == "constant" || name == "constant_with_warmup") return ScheduleKind::kConstant;
  fail(ErrorKind::kUsage,
       "unknown schedule \"{}\"; there are linear, cosine, constant and constant_with_warmup",
       name);
}

}  // namespace snug
