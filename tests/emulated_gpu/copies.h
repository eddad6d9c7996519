// Copies and fills of memory.
#pragma once

#include "emulated_gpu/runtime.h"

namespace emulated {

cudaError_t check_fill(const cudaMemsetParams& fill);
void do_fill(const cudaMemsetParams& fill);

}  // namespace emulated
