// The one block snug takes. Mapped and touched whole at construction: afterwards nothing can fail for want of memory.
#pragma once

#include <cstddef>

namespace snug {

class Arena {
 public:
  explicit Arena(size_t bytes);  // throws Error (kBudget) when the system does not give it
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  size_t resident_bytes() const;  // as the kernel counts it

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace snug
