// Each sequence has any number of classes: a sigmoid and a cross-entropy for each class, and their
// mean. Loss and gradient come from one pass, as in ops/cross_entropy.h.
#pragma once

#include <cstdint>

#include "graph/op.h"

namespace snug {

struct BinaryCrossEntropySpec {
  int64_t classes = 1;

  int64_t label_words() const { return (classes + 31) / 32; }
};

// Whether a sequence has a class, by the words of its label; for kernels of all devices.
constexpr bool has_class(const int32_t* words, int64_t c) {
  return (uint32_t(words[c / 32]) >> (c % 32) & 1) != 0;
}

// inputs {logits[sequences, classes]}
// outputs {loss[1, 1] fp64, += loss_scale * sum over sequences of the mean over classes of -log p,
// dlogits[sequences, classes] = loss_scale / classes * (sigmoid - has_class)}. Either output may be
// absent.
OpPtr binary_cross_entropy(const BinaryCrossEntropySpec& spec);

// The operators by name, for their kernels on other devices.

class BinaryCrossEntropy final : public Op {
 public:
  explicit BinaryCrossEntropy(const BinaryCrossEntropySpec& spec) : spec(spec) {}
  std::string_view name() const override { return "binary_cross_entropy"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const BinaryCrossEntropySpec spec;
};

}  // namespace snug
