// Weights that exist in a half type alone, seen as fp32: what files read and write.
#pragma once

#include "core/dtype.h"
#include "core/memory.h"

namespace snug {

class ConvertedWeights : public Memory {
 public:
  // Offsets count bytes of fp32 numbers: twice those of the memory, which must outlive this.
  ConvertedWeights(Memory& memory, DType dtype) : memory_(memory), dtype_(dtype) {}

  void read(size_t offset, std::span<std::byte> to) const override;
  void write(size_t offset, std::span<const std::byte> from) override;  // rounds to nearest even

  // The fp32 numbers, so many bytes of them, that lie at an offset of the memory.
  Block at(size_t offset, size_t bytes) { return {this, 2 * offset, bytes}; }

 private:
  Memory& memory_;
  DType dtype_;
};

}  // namespace snug
