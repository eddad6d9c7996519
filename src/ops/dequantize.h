// An int8 matrix as the numbers it stands for, made right before it is used: for those who multiply
// it in pieces of their own, like the head of a language model.
#pragma once

#include "graph/op.h"

namespace snug {

// inputs {q[rows, cols] int8, scales[1, rows] fp32}; outputs {x[rows, cols]}: row by row scale * q,
// in the type of x
OpPtr dequantize();

// The operator by name, for its kernel on other devices.

class Dequantize final : public Op {
 public:
  std::string_view name() const override { return "dequantize"; }
  bool always_repeated() const override { return true; }
  void run(const Call& call) const override;
};

}  // namespace snug
