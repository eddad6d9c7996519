// The best plans for many budgets as a table and a chart for terminals.
#pragma once

#include <string>
#include <vector>

#include "snug/snug.h"

namespace snug {

std::string sweep_text(const std::vector<SweepPoint>& sweep);

}  // namespace snug
