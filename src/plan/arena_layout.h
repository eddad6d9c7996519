// Where everything lies inside the arena:
//   weights | gradients | first moments | second moments | copies | scalars | device tables | transient region
// Inside each of the first four, parameter i starts at the same offset, so one table serves all of them. Copies are the
// weights that products read, in the type they compute in; there are none in fp32, and nothing else in inference.
#pragma once

#include <cstddef>
#include <vector>

#include "core/dtype.h"
#include "model/parameters.h"

namespace snug {

inline constexpr size_t kNoOffset = size_t(-1);

struct ArenaLayout {
  std::vector<size_t> parameter_offset;  // by parameter, inside each of the regions below; kNoOffset: only a copy
  size_t parameter_bytes = 0;            // of one such region
  size_t weights = 0, gradients = 0, first_moments = 0, second_moments = 0;
  std::vector<size_t> copy_offset;  // by parameter, inside `copies`; kNoOffset where there is none
  size_t copies = 0, copy_bytes = 0;
  size_t scalars = 0;
  size_t tables = 0, table_bytes = 0;  // what a device keeps besides: micro-batches, chunks of the update
  size_t transient = 0, transient_bytes = 0;
  size_t bytes = 0;  // whole pages
};

enum class ArenaUse { kTraining, kInference };  // inference has weights and transients only

struct ArenaNeeds {
  ArenaUse use = ArenaUse::kTraining;
  DType compute = DType::kF32;
  bool converts_weights = false;  // matrices are converted when used: only vectors have copies
  size_t transient_bytes = 0, table_bytes = 0;
};

ArenaLayout lay_out_arena(const ParameterTable& parameters, const ArenaNeeds& needs);

}  // namespace snug
