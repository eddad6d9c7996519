// A parameter in the type products compute in, made right before it is used. Where memory is short this takes the place
// of copies that live through the whole run.
#pragma once

#include "graph/op.h"

namespace snug {

// inputs {x[rows, cols] fp32}; outputs {y[rows, cols] bf16 or fp16, rounded to nearest even}
OpPtr convert();

// The operator by name, for its kernel on other devices.

class Convert final : public Op {
 public:
  std::string_view name() const override { return "convert"; }
  bool always_repeated() const override { return true; }
  void run(const Call& call) const override;
};

}  // namespace snug
