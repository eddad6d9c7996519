// The optimizer step on the device: norm of the gradient, clip factor, AdamW over all parameters, gradients back to
// zero. Three launches whatever the number of parameters; nothing comes back to the host in between.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "plan/gpu.h"

namespace snug::cuda {

struct UpdateArguments {
  float* weights = nullptr;
  float* gradients = nullptr;  // zero afterwards, whether applied or not
  float* moments = nullptr;  // first and second ones, where each chunk says
  void* copies = nullptr;  // weights in the compute type, or null
  DType copy_dtype = DType::kBF16;
  const UpdateChunk* chunks = nullptr;  // device memory
  int64_t chunk_count = 0;
  const UpdateFactors* factors = nullptr;  // device memory
  double* loss = nullptr;                  // device memory
  UpdateResult* result = nullptr;          // device memory
  double* partials = nullptr;              // kNormPartials doubles of scratch
};

void launch_update(const UpdateArguments& arguments, cudaStream_t stream);

}  // namespace snug::cuda
