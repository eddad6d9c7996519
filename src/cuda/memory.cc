#include "cuda/memory.h"

#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "cuda/check.h"
#include "ops/parallel.h"

namespace snug::cuda {
namespace {

constexpr int64_t kZeroGrain = 1 << 20;  // bytes: less is not worth a thread

}  // namespace

DeviceArena::DeviceArena(size_t bytes, cudaStream_t stream) : bytes_(bytes), stream_(stream) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or it would be reported again by the next call
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(ErrorKind::kBudget,
                fmt::format("the GPU does not give the {} that the plan needs: {} of {} are free",
                            format_bytes(bytes), format_bytes(free), format_bytes(total)),
                "another process may have taken memory since the plan was made; start again");
  }
  check(status, "cudaMalloc");
  base_ = static_cast<std::byte*>(memory);
  SNUG_CUDA(cudaMemsetAsync(base_, 0, bytes, stream));
}

DeviceArena::~DeviceArena() { cudaFree(base_); }

void DeviceArena::read(size_t offset, std::span<std::byte> to) const {
  SNUG_CUDA(cudaMemcpyAsync(to.data(), base_ + offset, to.size(), cudaMemcpyDeviceToHost, stream_));
  SNUG_CUDA(cudaStreamSynchronize(stream_));
}

void DeviceArena::write(size_t offset, std::span<const std::byte> from) {
  SNUG_CUDA(
      cudaMemcpyAsync(base_ + offset, from.data(), from.size(), cudaMemcpyHostToDevice, stream_));
  SNUG_CUDA(cudaStreamSynchronize(stream_));
}

PinnedBuffer::PinnedBuffer(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocHost(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    fail(ErrorKind::kBudget, "the system does not give {} of pinned host memory",
         format_bytes(bytes));
  }
  check(status, "cudaMallocHost");
  data_ = static_cast<std::byte*>(memory);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)) {}

PinnedMemory::PinnedMemory(size_t bytes, cudaStream_t stream) : stream_(stream) {
  if (bytes == 0) return;
  buffer_.emplace(bytes);
  over_ranges(int64_t(bytes), kZeroGrain, [&](int64_t begin, int64_t end) {
    std::memset(base() + begin, 0, size_t(end - begin));
  });
}

void PinnedMemory::read(size_t offset, std::span<std::byte> to) const {
  SNUG_CUDA(cudaStreamSynchronize(stream_));
  std::memcpy(to.data(), base() + offset, to.size());
}

void PinnedMemory::write(size_t offset, std::span<const std::byte> from) {
  SNUG_CUDA(cudaStreamSynchronize(stream_));
  std::memcpy(base() + offset, from.data(), from.size());
}

}  // namespace snug::cuda
