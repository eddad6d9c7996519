// Writes the backward pass behind a forward graph. Segments named for recomputation keep nothing but what other segments
// read: just before their backward, the nodes whose results it needs are run again. Operators are pure functions of
// their inputs and of counter-based randomness, so recomputing gives the same bits.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace snug {

// recompute[s] says whether segment s is recomputed; shorter vectors mean false for the rest.
void append_backward(Graph& graph, const std::vector<bool>& recompute);

}  // namespace snug
