// What the process occupies before the arena, known before planning. A miniature model runs one training step and one
// evaluation first: code pages, thread stacks and the matrix library's own buffers are all touched by then, so that what
// is read afterwards does not grow during the run.
#pragma once

#include <cstdint>

namespace snug {

struct Overhead {
  uint64_t bytes = 0;               // occupied now
  uint64_t startup_peak_bytes = 0;  // the most so far
};

// `largest_product_side`: of the real model's weight matrices, which size the matrix library's buffers.
Overhead measure_overhead(int64_t largest_product_side);

}  // namespace snug
