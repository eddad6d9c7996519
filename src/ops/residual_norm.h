// Residual connection, dropout and layer norm in one pass: sum = residual + dropout(x), y =
// norm(sum) * gamma + beta. `sum` is kept for backward; pre-norm models also carry it on as the
// next residual, and its gradient is then added in.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct ResidualNormSpec {
  int64_t hidden = 1;
  float eps = 1e-12f;
  float dropout = 0.0f;
  uint32_t site = 0;  // names the dropout mask
};

// inputs {x[tokens, hidden], residual[tokens, hidden], gamma[1, hidden], beta[1, hidden]}
// outputs {y[tokens, hidden], sum[tokens, hidden], stats[tokens, 2] (mean, 1 / deviation)}
// stats may be absent where no gradient is wanted; sum too (it is then not written)
OpPtr residual_norm(const ResidualNormSpec& spec);

struct LayerNormSpec {
  int64_t hidden = 1;
  float eps = 1e-5f;
};

// inputs {x[rows, hidden], gamma[1, hidden], beta[1, hidden]}; outputs {y[rows, hidden],
// stats[rows, 2]}
OpPtr layer_norm(const LayerNormSpec& spec);

}  // namespace snug
