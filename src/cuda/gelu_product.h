// Products for Hopper with either form of GELU, or with GELU's gradient, in the same kernel.
// cuBLASLt knows the tanh form only, and none that gives the bits of the kernels in activation.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "cuda/product.h"

namespace snug::cuda {

// Whether there is such a kernel for a product whose shape says what to do with GELU: on this
// device, in this build, of these sizes, with this much workspace.
bool has_gelu_product(const ProductShape& shape, size_t workspace_bytes);

// y = gelu(argument), argument = x · wᵀ + b as it is rounded for storage, whether it, the slope
// there or neither is kept; or dx = (dy · w) · slope, kept or at the argument that is kept and
// rounded, and column_sums += its sums over rows where they are wanted.
void launch_gelu_product(const ProductShape& shape, const ProductTensors& tensors,
                         std::span<std::byte> workspace, cudaStream_t stream);

}  // namespace snug::cuda
