// Memory of the device and pinned memory of the host: how much is taken, and what lies where.
#pragma once

#include "emulated_gpu/runtime.h"

namespace emulated {

// CUDA's own memory, taken by whoever needs it first and never given back; the code of kernels, by
// the first of them.
cudaError_t make_context();
cudaError_t load_code();

enum class Place { kElsewhere, kPinned, kDevice, kOverEnd };  // kOverEnd: of an allocation
Place place_of(const void* begin, size_t bytes);

}  // namespace emulated
