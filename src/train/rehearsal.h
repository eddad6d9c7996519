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

// Runs the miniature. Called before data is read: what it takes and gives back again is more than reading takes, so the
// most the process occupies until then does not depend on whether the data was read before.
void rehearse();

// The largest side of the real model's weight matrices and the most rows they will meet size the matrix library's buffers.
// Call after rehearse().
Overhead measure_overhead(int64_t largest_product_side, int64_t most_rows);

}  // namespace snug
