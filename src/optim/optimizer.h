// The optimizers by name, what each keeps for a trained parameter, and one call that updates a
// parameter whatever the optimizer. State is one block a parameter whose inner format is the
// optimizer's own business; all zero bytes is how it begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "model/parameters.h"
#include "optim/step.h"

namespace snug {

enum class Optimizer : uint8_t {
  kAdamW,
  kAdamW8Bit,  // moments of matrices in eight bits
  kAdamWBf16,  // matrices and their moments in bf16, rounded stochastically
  kAdafactor,
  kSgd,  // without momentum, hence without state
  kSgdMomentum,
};

// "adamw" (also "adamw_torch", "adamw_hf"), "adamw_8bit" (also "adamw_bnb_8bit"), "adamw_bf16",
// "adafactor" and "sgd"; anything else is a usage error naming these. `momentum` tells the two
// kinds of SGD apart.
Optimizer parse_optimizer(std::string_view name, double momentum);
std::string_view optimizer_name(Optimizer optimizer);

// How the state of one parameter looks.
enum class StateFormat : uint8_t {
  kNone,
  kMoments,      // fp32: first ones, and moment_bytes() behind their start second ones
  kEightBit,     // adamw_8bit.h
  kHalfMoments,  // adamw_bf16.h
  kFactored,     // of each part of a matrix fp32 means of rows, then of columns; of a vector one
                 // number an element
  kMomentum,     // fp32
};
StateFormat state_format(Optimizer optimizer, const Parameter& parameter);

// Of one trained parameter; a multiple of kTensorAlignment.
size_t state_bytes(Optimizer optimizer, const Parameter& parameter);

// Of one array of fp32 moments, with what fills it up to the next.
size_t moment_bytes(const Parameter& parameter);

// Whether the weight exists in bf16 alone.
bool keeps_bfloat16(Optimizer optimizer, const Parameter& parameter);

// Adafactor sees the tensors of Hugging Face's files: query, key and value each have their own
// second moments.
struct AdafactorPart {
  int64_t first = 0;           // element of the parameter
  int64_t rows = 0, cols = 0;  // rows is 0 for a vector
  size_t state = 0;            // bytes into the parameter's state: `rows` numbers and then `cols`

  int64_t size() const { return rows == 0 ? cols : rows * cols; }
};
size_t adafactor_part_count(const Parameter& parameter);
AdafactorPart adafactor_part(const Parameter& parameter, size_t index);

// One update of one parameter on the CPU, with step.weight_decay where the parameter decays.
// `weights` are fp32, or bf16 where keeps_bfloat16(); `index` is the parameter's number in its
// table.
void update_parameter(Optimizer optimizer, const Parameter& parameter, uint64_t index,
                      void* weights, std::span<const float> gradient, std::byte* state,
                      const OptimizerStep& step);

}  // namespace snug
