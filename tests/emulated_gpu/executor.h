// Runs a kernel's grid on the processor: every thread of a block is a fiber, blocks come one after
// the other.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <functional>

namespace emulated {

struct Grid {
  dim3 blocks, threads, cluster;
  size_t shared_bytes = 0;  // dynamic
};

// Returns when every thread has ended. A block whose threads wait for each other for ever is a
// mistake in the kernel: the process ends with a message.
void run(const Grid& grid, const std::function<void()>& kernel);

}  // namespace emulated
