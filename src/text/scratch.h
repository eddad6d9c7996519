// Scratch memory that a thread keeps between texts: a rare huge text does not stay in memory.
#pragma once

#include <cstddef>

namespace snug {

template <class Container>
void release_if_large(Container& container) {
  constexpr size_t kBytesKept = 1u << 20;
  if (container.capacity() * sizeof(*container.data()) > kBytesKept) Container().swap(container);
}

}  // namespace snug
