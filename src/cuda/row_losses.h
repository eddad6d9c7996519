// What the losses share: each row's own is written first, so that many blocks can work on them, and
// then all are added in the same order always.
#pragma once

#include "cuda/launch.h"

namespace snug::cuda {

// loss += loss_scale * the sum of losses [rows].
void add_row_losses(const double* losses, int64_t rows, double* loss, const Launch& call);

// Where an operator with ops/cuda_workspace.h's row_losses_bytes() writes the losses of its rows;
// null where nobody wants their sum, output 0.
double* row_losses(const Launch& call, int64_t rows);

}  // namespace snug::cuda
