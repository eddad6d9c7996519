// The one block snug takes. Mapped and touched whole at construction: afterwards nothing can fail
// for want of memory.
#pragma once

#include <cstddef>

#include "core/memory.h"

namespace snug {

class Arena : public Memory {
 public:
  explicit Arena(size_t bytes);  // throws Error (kBudget) when the system does not give it
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void read(size_t offset, std::span<std::byte> to) const override;
  void write(size_t offset, std::span<const std::byte> from) override;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  size_t resident_bytes() const;  // as the kernel counts it

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace snug
