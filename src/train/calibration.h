// How fast this device is at a model of this width: a few steps of models with one and two layers,
// timed once and kept in the cache folder by device, shape, precision and threads. The small models
// are planned inside the same budget.
#pragma once

#include <filesystem>
#include <optional>

#include "plan/planner.h"
#include "runtime/platform.h"

namespace snug {

struct CalibrationOptions {
  std::filesystem::path cache_folder;
  bool run = false;  // otherwise only what is in the cache counts
};

// Empty where nothing was measured, or where not even two layers fit the budget (which is said).
std::optional<Speed> calibrated_speed(Platform& platform, const PlanRequest& request,
                                      const CalibrationOptions& options);

}  // namespace snug
