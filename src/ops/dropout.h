// Dropout on one row per sequence (the classifier's input). Backward draws the mask again.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct DropoutSpec {
  float p = 0.0f;
  uint32_t site = 0;  // names the mask
};

// inputs {x[sequences, hidden]}; outputs {y[sequences, hidden]}
OpPtr dropout(const DropoutSpec& spec);

}  // namespace snug
