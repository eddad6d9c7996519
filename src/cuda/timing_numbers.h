// Numbers to time products on. How long a product takes depends on its factors: the more of their
// bits change from one element to the next, the more power it needs, and at its power limit a GPU
// lowers its clock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace snug::cuda {

// Fills memory, aligned to 4 bytes, with what are small numbers of either sign in every
// floating-point type.
void launch_timing_numbers(void* to, size_t bytes, cudaStream_t stream);

}  // namespace snug::cuda
