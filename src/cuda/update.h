// The optimizer step on the device: norm of the gradient, clip factor, update of all parameters,
// gradients back to zero. Three launches whatever the number of parameters, but for Adafactor,
// which needs some for each tensor; nothing comes back to the host in between.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "plan/update_table.h"

namespace snug::cuda {

struct UpdateArguments {
  Optimizer optimizer = Optimizer::kAdamW;
  std::byte* arena = nullptr;       // gradients in it are zero afterwards, whether applied or not
  DType copy_dtype = DType::kBF16;  // of weights in the compute type
  const UpdateChunk* chunks = nullptr;  // device memory
  int64_t chunk_count = 0;
  std::span<const UpdateTensor> tensors;   // host memory; for Adafactor
  const UpdateFactors* factors = nullptr;  // device memory
  double* loss = nullptr;                  // device memory
  UpdateResult* result = nullptr;          // device memory
  double* partials = nullptr;              // kNormPartials doubles of scratch
  // kSeenBytes per chunk, kept from step to step: zero before the first, all bits set where moments
  // come from elsewhere. Null: all gradients are read again, and all moments.
  uint8_t* seen = nullptr;
};

void launch_update(const UpdateArguments& arguments, cudaStream_t stream);

}  // namespace snug::cuda
