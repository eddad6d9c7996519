// Rewrites of a finished step graph that save passes over memory. Results stay what they were up to
// the order of sums.
#pragma once

#include "graph/graph.h"

namespace snug {

// The gradient of a bias is the sum over rows of a gradient that the backward of a norm or of
// attention has just computed: that one adds it up on the way, and the pass that would read it
// again goes.
void fuse_bias_gradients(Graph& graph);

// A layer's gradient for its input, then the gradient of GELU that made this input: one operator,
// since products on a GPU can do both at once.
void fuse_activation_gradients(Graph& graph);

// A layer whose argument of GELU is read for its derivative alone keeps that derivative instead,
// which it has at hand when it computes GELU, and backward multiplies. Half types round it either
// way, bf16 to a byte, of which it takes columns in whole groups to be kept.
void keep_slopes(Graph& graph);

}  // namespace snug
