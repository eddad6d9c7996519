// One token of each sequence, which stands for all of it: its first ([CLS]) or, where tokens see
// only those before them, its last. x[tokens, hidden] -> y[sequences, hidden].
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

enum class End : uint8_t { kFirst, kLast };

// Sequences that are not empty; for kernels of all devices.
constexpr int64_t end_of(const int32_t* starts, int64_t sequence, End end) {
  return end == End::kFirst ? starts[sequence] : starts[sequence + 1] - 1;
}

// inputs {x[tokens, hidden]}; outputs {y[sequences, hidden]}
OpPtr end_token(End end);

// The operators by name, for their kernels on other devices.

// inputs {dy}; outputs {dx: zero but for these tokens, or added to there}
class EndTokenGradient final : public Op {
 public:
  EndTokenGradient(End end, bool accumulate) : end(end), accumulate(accumulate) {}
  std::string_view name() const override { return "end_token_gradient"; }
  void run(const Call& call) const override;

  const End end;
  const bool accumulate;
};

class EndToken final : public Op {
 public:
  explicit EndToken(End end) : end(end) {}
  std::string_view name() const override { return "end_token"; }
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;

  const End end;
};

}  // namespace snug
