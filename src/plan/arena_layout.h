// Where everything lies inside the arena:
//   weights | gradients | first moments | second moments | scalars | transient region of the step graphs
// Inside each of the first four, parameter i starts at the same offset, so one table serves all of them.
#pragma once

#include <cstddef>
#include <vector>

#include "model/parameters.h"

namespace snug {

struct ArenaLayout {
  std::vector<size_t> parameter_offset;  // by parameter, inside each of the regions below
  size_t parameter_bytes = 0;            // of one such region
  size_t weights = 0, gradients = 0, first_moments = 0, second_moments = 0;
  size_t scalars = 0;
  size_t transient = 0, transient_bytes = 0;
  size_t bytes = 0;  // whole pages
};

enum class ArenaUse { kTraining, kInference };  // inference has weights and transients only

ArenaLayout lay_out_arena(const ParameterTable& parameters, ArenaUse use, size_t transient_bytes);

}  // namespace snug
