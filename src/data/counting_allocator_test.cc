// Counts what the whole test program allocates. In a file of its own, so that no caller sees the
// bodies and the compiler pairs new with delete, not with free.
#include <atomic>
#include <cstdlib>
#include <new>

#include "data/test_support.h"

namespace {

std::atomic<size_t> g_allocated_bytes = 0;

}  // namespace

size_t snug::allocated_bytes() { return g_allocated_bytes; }

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  g_allocated_bytes += bytes;
  return std::malloc(bytes);
}
void* operator new(size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
