// Memory comes filled with 0xff, so that who reads what nobody wrote sees NaN or -1. Large blocks
// are mapped and left alone: what is not touched costs nothing. With the address sanitizer all of
// them are its own, with borders that it watches.
#include "emulated_gpu/allocations.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include "emulated_gpu/capture.h"
#include "emulated_gpu/errors.h"

namespace emulated {
namespace {

constexpr size_t kGranule = size_t{2} << 20;  // what the driver takes from the device at once
constexpr size_t kAlign = 512;
constexpr size_t kLarge = size_t{64} << 20;
#ifdef __SANITIZE_ADDRESS__
constexpr bool kMapsLarge = false;
#else
constexpr bool kMapsLarge = true;
#endif

struct Allocation {
  size_t bytes;
  Place place;
};
struct Memory {
  std::map<uintptr_t, Allocation> allocations;
  size_t used_bytes = 0;  // of the device, by this process
  bool has_context = false, has_code = false;
  long calls = 0;
};
// Stays to the end: static objects of others give their memory back when the process ends.
Memory& memory() {
  static Memory& memory = *new Memory;
  return memory;
}

size_t free_bytes() {
  const size_t total = device().memory_bytes, neighbours = device().neighbours_bytes;
  const size_t left = total - std::min(total, neighbours);
  return left - std::min(left, memory().used_bytes);
}

cudaError_t take(size_t bytes) {
  if (bytes > free_bytes()) return cudaErrorMemoryAllocation;
  memory().used_bytes += bytes;
  return cudaSuccess;
}

cudaError_t take_once(bool& taken, size_t bytes) {
  if (taken) return cudaSuccess;
  const cudaError_t status = take(bytes);
  taken = status == cudaSuccess;
  return status;
}

size_t taken_by(const Allocation& allocation) {
  if (allocation.place != Place::kDevice) return 0;
  return (allocation.bytes + kGranule - 1) / kGranule * kGranule;
}

void* new_block(size_t bytes) {
  void* block = nullptr;
  if (kMapsLarge && bytes > kLarge) {
    block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return block == MAP_FAILED ? nullptr : block;
  }
  if (::posix_memalign(&block, kAlign, bytes) != 0) return nullptr;
  if (bytes <= kLarge) std::memset(block, 0xff, bytes);
  return block;
}

void delete_block(void* block, size_t bytes) {
  if (kMapsLarge && bytes > kLarge) {
    ::munmap(block, bytes);
  } else {
    std::free(block);
  }
}

cudaError_t allocate(void** to, const Allocation& allocation) {
  if (to == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t status = refuse_while_capturing(); status != cudaSuccess) return status;
  if (++memory().calls == device().failing_allocation) return cudaErrorMemoryAllocation;
  if (const cudaError_t status = make_context(); status != cudaSuccess) return status;
  *to = nullptr;
  if (allocation.bytes == 0) return cudaSuccess;
  if (allocation.bytes > SIZE_MAX - kGranule) return cudaErrorMemoryAllocation;
  if (const cudaError_t status = take(taken_by(allocation)); status != cudaSuccess) return status;
  *to = new_block(allocation.bytes);
  if (*to == nullptr) {
    memory().used_bytes -= taken_by(allocation);
    return cudaErrorMemoryAllocation;
  }
  memory().allocations.emplace(reinterpret_cast<uintptr_t>(*to), allocation);
  return cudaSuccess;
}

cudaError_t give_back(void* block, Place place) {
  if (block == nullptr) return cudaSuccess;
  if (const cudaError_t status = refuse_while_capturing(); status != cudaSuccess) return status;
  const auto found = memory().allocations.find(reinterpret_cast<uintptr_t>(block));
  if (found == memory().allocations.end() || found->second.place != place) {
    return cudaErrorInvalidValue;
  }
  memory().used_bytes -= taken_by(found->second);
  delete_block(block, found->second.bytes);
  memory().allocations.erase(found);
  return cudaSuccess;
}

// Also behind work that failed: the block must not leak.
cudaError_t give_back_and_answer(void* block, Place place) {
  const cudaError_t status = give_back(block, place);
  return answer([&] { return status; });
}

}  // namespace

cudaError_t make_context() { return take_once(memory().has_context, device().context_bytes); }
cudaError_t load_code() { return take_once(memory().has_code, device().code_bytes); }

Place place_of(const void* begin, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  auto found = memory().allocations.upper_bound(at);
  if (found == memory().allocations.begin()) return Place::kElsewhere;
  const auto& [block, allocation] = *--found;
  if (at - block >= allocation.bytes) return Place::kElsewhere;
  return bytes > allocation.bytes - (at - block) ? Place::kOverEnd : allocation.place;
}

}  // namespace emulated

using emulated::Place;

cudaError_t cudaMalloc(void** to, size_t bytes) {
  return emulated::answer([&] { return emulated::allocate(to, {bytes, Place::kDevice}); });
}
cudaError_t cudaMallocHost(void** to, size_t bytes) {
  return emulated::answer([&] { return emulated::allocate(to, {bytes, Place::kPinned}); });
}
cudaError_t cudaFree(void* block) { return emulated::give_back_and_answer(block, Place::kDevice); }
cudaError_t cudaFreeHost(void* block) {
  return emulated::give_back_and_answer(block, Place::kPinned);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return emulated::answer([&] {
    const cudaError_t status = emulated::make_context();
    *free = emulated::free_bytes();
    *total = emulated::device().memory_bytes;
    return status;
  });
}
