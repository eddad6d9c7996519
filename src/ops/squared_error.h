// Each sequence has one or more numbers: the mean of their squared errors. Loss and gradient come
// from one pass, as in ops/cross_entropy.h.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct SquaredErrorSpec {
  int64_t numbers = 1;  // of a sequence, and words of its label

  int64_t label_words() const { return numbers; }
};

// inputs {y[sequences, numbers]}
// outputs {loss[1, 1] fp64, += loss_scale * sum over sequences of the mean of (y - label)²,
// dy[sequences, numbers] = 2 * loss_scale / numbers * (y - label)}. Either output may be absent.
// Numbers that are not known (NaN) add nothing and get gradient zero.
OpPtr squared_error(const SquaredErrorSpec& spec);

// The operators by name, for their kernels on other devices.

class SquaredError final : public Op {
 public:
  explicit SquaredError(const SquaredErrorSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "squared_error"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const SquaredErrorSpec spec;
};

}  // namespace snug
