// A parameter in the type products compute in, made right before it is used. Where memory is short
// this takes the place of copies that live through the whole run, or of fp32 weights where the
// optimizer keeps bf16 ones.
#pragma once

#include "graph/op.h"

namespace snug {

// inputs {x[rows, cols]}; outputs {y[rows, cols]}: from fp32 to bf16 or fp16, rounded to nearest
// even, or from bf16 to fp32
OpPtr convert();

// The operator by name, for its kernel on other devices.

class Convert final : public Op {
 public:
  std::string_view name() const override { return "convert"; }
  bool always_repeated() const override { return true; }
  void run(const Call& call) const override;
};

}  // namespace snug
