// What the process occupies before the arena, known before planning. A miniature model runs one
// training step and one evaluation first: code pages, thread stacks and the matrix library's own
// buffers are all touched by then, so that what is read afterwards does not grow during the run.
#pragma once

#include <cstdint>

namespace snug {

struct Overhead {
  uint64_t bytes = 0;               // occupied now
  uint64_t startup_peak_bytes = 0;  // the most so far
};

// Runs the miniature. Called before data is read: what it takes and gives back again is more than
// reading takes, so the most the process occupies until then does not depend on whether the data
// was read before.
void rehearse();

// Call after rehearse() and warm_up_products().
Overhead measure_overhead();

}  // namespace snug
