// The arena on the device, and memory of the host that the device can read on its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <span>

#include "core/memory.h"

namespace snug::cuda {

class DeviceArena : public Memory {
 public:
  // Zeroed. Throws Error (kBudget) when the device does not give it.
  DeviceArena(size_t bytes, cudaStream_t stream);
  ~DeviceArena() override;
  DeviceArena(const DeviceArena&) = delete;

  // Both wait for what the stream still does.
  void read(size_t offset, std::span<std::byte> to) const override;
  void write(size_t offset, std::span<const std::byte> from) override;

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  cudaStream_t stream_;
};

class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// The host's memory that kernels work on, as files see it.
class PinnedMemory : public Memory {
 public:
  // Zeroed; 0 bytes: none. Throws Error (kBudget) when the system does not give it.
  PinnedMemory(size_t bytes, cudaStream_t stream);

  // Both wait for what the stream still does.
  void read(size_t offset, std::span<std::byte> to) const override;
  void write(size_t offset, std::span<const std::byte> from) override;

  std::byte* base() const { return buffer_ ? buffer_->data() : nullptr; }

 private:
  std::optional<PinnedBuffer> buffer_;
  cudaStream_t stream_;
};

}  // namespace snug::cuda
