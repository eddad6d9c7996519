// Which of some ways to do the same work on the device takes least time, as it runs in a step:
// behind other work, in a graph, and for as long as the step keeps the device busy with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace snug::cuda {

class GraphCounters;

struct Contest {
  cudaStream_t stream = nullptr;
  GraphCounters* counters = nullptr;  // what graphs count in, or null
  // The work is long and will follow itself, so that the device's power limit counts.
  bool at_power_limit = false;
};

struct Fastest {
  size_t way = 0;
  float milliseconds = 0;  // 0: none is possible
};

// do_it(i) does the work in way i, and says whether that was possible.
Fastest fastest_of(size_t ways, const Contest& contest, const std::function<bool(size_t)>& do_it);

}  // namespace snug::cuda
