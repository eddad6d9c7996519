// Learning rate by step, as transformers' schedulers define it: a linear warm-up, then the named
// shape.
#pragma once

#include <cstdint>
#include <string_view>

namespace snug {

enum class ScheduleKind { kLinear, kCosine, kConstant };

struct Schedule {
  ScheduleKind kind = ScheduleKind::kLinear;
  double peak = 5e-5;
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 1;

  double rate(uint64_t step) const;  // step counts from 0: the rate used for update number step + 1
};

// "linear", "cosine", "constant", "constant_with_warmup"; anything else is a usage error naming
// these.
ScheduleKind parse_schedule(std::string_view name);

}  // namespace snug
