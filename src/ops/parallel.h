// How kernels use threads: a range is cut once, into one piece per thread, at multiples of a grain.
// Kernels work on pieces and know nothing of threads; whatever a piece computes must not depend on
// where the cuts are.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace snug {

// Columns are cut at multiples of this: whole cache lines and whole vectors on every target.
inline constexpr int64_t kColumnGrain = 64;

// Calls body(begin, end) on disjoint pieces of [0, count), one per thread.
template <class Body>
void over_ranges(int64_t count, int64_t grain, const Body& body) {
  const int64_t blocks = (count + grain - 1) / grain;
#pragma omp parallel if (blocks > 1)
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t begin = blocks * thread / threads * grain;
    const int64_t end = std::min(count, blocks * (thread + 1) / threads * grain);
    if (begin < end) body(begin, end);
  }
}

}  // namespace snug
