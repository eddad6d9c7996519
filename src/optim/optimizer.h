// What an optimizer keeps for each trained parameter. Its state is one block whose inner format is its own business.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/parameters.h"

namespace snug {

enum class Optimizer : uint8_t { kAdamW };

// Of one trained parameter; a multiple of kTensorAlignment. AdamW: the first moments, and behind them the second ones, both
// fp32.
size_t state_bytes(Optimizer optimizer, const Parameter& parameter);

// Of one array of fp32 moments, with what fills it up to the next.
size_t moment_bytes(const Parameter& parameter);

}  // namespace snug
