// What a CUDA kernel of an operator is given. Launches are captured once into a CUDA graph and
// replayed, so everything that changes from one micro-batch to the next is read from device memory:
// sizes on the host are those of the bucket the graph was captured for, StepState says what is
// really there.
//
// Rows of a tensor behind the real ones (up to the bucket's) are padding. Every kernel writes zeros
// there, or leaves values that are finite where they were: matrix products run over the whole
// bucket, and a zero gradient row adds nothing to a weight's gradient as long as no row holds NaN.
#pragma once

#include <cuda_runtime_api.h>

#include "graph/op.h"
#include "plan/gpu.h"

namespace snug::cuda {

class CopyStream;
class PendingSums;
class Products;

struct Launch {
  // Device memory, rows of the bucket; absent optional tensors have a null pointer.
  std::span<const Tensor> in, out;
  std::span<std::byte> workspace;  // device memory, 256-byte aligned, contents undefined
  // dims: of the bucket. Arrays: device memory. starts[] is filled up to dims.sequences with the
  // number of tokens, labels[] with -1, so sequences that are not there are empty; token arrays are
  // valid for state->tokens, those of targets for state->targets.
  const Batch* batch = nullptr;
  const StepState* state = nullptr;   // device memory
  const StepContext* step = nullptr;  // seed and training; its loss_scale does not count here
  bool only_pass = false;  // the micro-batch is the whole step: gradients of weight matrices are
                           // written, not added to
  uint64_t dying = 0;      // a bit for each input that nobody reads again
  std::byte* outside = nullptr;  // pinned memory of the host, where the plan keeps something there
  const ArenaLayout* layout = nullptr;
  cudaStream_t stream = nullptr;
  Products* products = nullptr;
  PendingSums* pending = nullptr;  // sums over rows that wait; null: they are added at once
  CopyStream* copies = nullptr;

  bool dies(size_t input) const { return dying >> input & 1; }
};

}  // namespace snug::cuda
