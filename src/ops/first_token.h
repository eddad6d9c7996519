// The first token of each sequence ([CLS]): x[tokens, hidden] -> y[sequences, hidden].
#pragma once

#include "graph/op.h"

namespace snug {

// inputs {x[tokens, hidden]}; outputs {y[sequences, hidden]}
OpPtr first_token();

}  // namespace snug
