// Both ends of a copy must be where its kind says and end within their block, which CUDA leaves to
// chance. Pinned memory passes for either side.
#include "emulated_gpu/copies.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "emulated_gpu/allocations.h"
#include "emulated_gpu/capture.h"
#include "emulated_gpu/errors.h"
#include "emulated_gpu/streams.h"

namespace emulated {
namespace {

constexpr size_t kPage = 4096, kManyBytes = size_t{64} << 20;

// Pages of a large clear are given back instead: they come again as zeros when they are needed.
void set_bytes(std::byte* to, int value, size_t bytes) {
  if (value == 0 && bytes >= kManyBytes) {
    const size_t before = -reinterpret_cast<uintptr_t>(to) % kPage,
                 pages = (bytes - before) / kPage * kPage;
    if (::madvise(to + before, pages, MADV_DONTNEED) == 0) {
      std::memset(to, 0, before);
      std::memset(to + before + pages, 0, bytes - before - pages);
      return;
    }
  }
  std::memset(to, value, bytes);
}

cudaMemsetParams fill_of(void* to, int value, size_t bytes) {
  return {.dst = to,
          .pitch = 0,
          .value = unsigned(value) & 0xff,
          .elementSize = 1,
          .width = bytes,
          .height = 1};
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;

  void operator()() const { std::memmove(to, from, bytes); }
};

bool is_host(Place place) { return place == Place::kElsewhere || place == Place::kPinned; }
bool is_device(Place place) { return place == Place::kDevice || place == Place::kPinned; }

cudaError_t check_copy(const Copy& copy, cudaMemcpyKind kind) {
  const Place to = place_of(copy.to, copy.bytes), from = place_of(copy.from, copy.bytes);
  if (to == Place::kOverEnd || from == Place::kOverEnd) return cudaErrorInvalidValue;
  const auto from_to = [](bool from_fits, bool to_fits) {
    return from_fits && to_fits ? cudaSuccess : cudaErrorInvalidValue;
  };
  switch (kind) {
    case cudaMemcpyHostToHost:
      return from_to(is_host(from), is_host(to));
    case cudaMemcpyHostToDevice:
      return from_to(is_host(from), is_device(to));
    case cudaMemcpyDeviceToHost:
      return from_to(is_device(from), is_host(to));
    case cudaMemcpyDeviceToDevice:
      return from_to(is_device(from), is_device(to));
    case cudaMemcpyDefault:
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

// As CUDA's forms without a stream: unsafe while this thread captures.
cudaError_t wait_for(const std::function<void()>& work) {
  const cudaError_t status = refuse_while_capturing();
  return status == cudaSuccess ? do_now(work) : status;
}

}  // namespace

cudaError_t check_fill(const cudaMemsetParams& fill) {
  const size_t size = fill.elementSize;
  if ((size != 1 && size != 2 && size != 4) || fill.width == 0 || fill.height == 0 ||
      reinterpret_cast<uintptr_t>(fill.dst) % size != 0 ||
      (fill.height > 1 && (fill.pitch < fill.width * size || fill.pitch % size != 0))) {
    return cudaErrorInvalidValue;
  }
  const size_t bytes = (fill.height > 1 ? (fill.height - 1) * fill.pitch : 0) + fill.width * size;
  return is_device(place_of(fill.dst, bytes)) ? cudaSuccess : cudaErrorInvalidValue;
}

void do_fill(const cudaMemsetParams& fill) {
  for (size_t row = 0; row < fill.height; ++row) {
    std::byte* const to = static_cast<std::byte*>(fill.dst) + row * fill.pitch;
    if (fill.elementSize == 1 || fill.value == 0) {
      set_bytes(to, int(fill.value), fill.width * fill.elementSize);
      continue;
    }
    for (size_t i = 0; i < fill.width; ++i) {
      // The first bytes are the low ones.
      std::memcpy(to + i * fill.elementSize, &fill.value, fill.elementSize);
    }
  }
}

}  // namespace emulated

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return emulated::answer([&] {
    if (bytes == 0) return cudaSuccess;
    const emulated::Copy copy{to, from, bytes};
    const cudaError_t status = emulated::check_copy(copy, kind);
    return status == cudaSuccess ? emulated::wait_for(copy) : status;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return emulated::answer([&] {
    if (bytes == 0) return cudaSuccess;
    const emulated::Copy copy{to, from, bytes};
    const cudaError_t status = emulated::check_copy(copy, kind);
    if (status != cudaSuccess) return status;
    return emulated::submit_work(stream, {cudaGraphNodeTypeMemcpy, copy});
  });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return emulated::answer([&] {
    if (bytes == 0) return cudaSuccess;
    const cudaMemsetParams fill = emulated::fill_of(to, value, bytes);
    const cudaError_t status = emulated::check_fill(fill);
    if (status != cudaSuccess) return status;
    return emulated::wait_for([&] { emulated::do_fill(fill); });
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulated::answer([&] {
    if (bytes == 0) return cudaSuccess;
    const cudaMemsetParams fill = emulated::fill_of(to, value, bytes);
    const cudaError_t status = emulated::check_fill(fill);
    if (status != cudaSuccess) return status;
    return emulated::submit_work(stream, emulated::fill_work(fill));
  });
}
