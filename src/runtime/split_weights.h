// Weights that lie in two halves, see split_float(), seen as fp32: what files read and write.
#pragma once

#include "core/memory.h"

namespace snug {

class SplitWeights : public Memory {
 public:
  // Offsets count bytes of fp32 numbers. The halves' memories must outlive this.
  SplitWeights(const Block& upper, const Block& lower) : upper_(upper), lower_(lower) {}

  void read(size_t offset, std::span<std::byte> to) const override;
  void write(size_t offset, std::span<const std::byte> from) override;

 private:
  Block upper_, lower_;
};

}  // namespace snug
