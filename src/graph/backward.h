// Writes the backward pass behind a forward graph. What a segment recomputes is not kept: right
// before the first backward node that reads it, it is made again, from other values or by running
// its node and whatever that needs in turn. Values that other segments read stay, unless they can
// be made from values that stay in their place.
#pragma once

#include "graph/graph.h"
#include "graph/recompute.h"

namespace snug {

void append_backward(Graph& graph, const Recomputation& recompute);

}  // namespace snug
