// Memory that may lie on another device, as files see it: read and written in pieces through host
// memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace snug {

inline constexpr size_t kTensorAlignment = 256;  // what every device likes

constexpr size_t align_up(size_t bytes, size_t alignment = kTensorAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

class Memory {
 public:
  virtual ~Memory() = default;
  virtual void read(size_t offset, std::span<std::byte> to) const = 0;
  virtual void write(size_t offset, std::span<const std::byte> from) = 0;
};

// Pieces that files are streamed in.
inline constexpr size_t kPieceBytes = 256 << 10;

// each(first, part of the buffer) over `count` elements.
template <class T, class Each>
void in_pieces(size_t count, std::span<T> buffer, const Each& each) {
  for (size_t first = 0; first < count; first += buffer.size()) {
    each(first, buffer.first(std::min(buffer.size(), count - first)));
  }
}

// A stretch of such memory.
struct Block {
  Memory* memory = nullptr;
  size_t offset = 0, bytes = 0;

  void read(size_t at, std::span<std::byte> to) const { memory->read(offset + at, to); }
  void write(size_t at, std::span<const std::byte> from) const { memory->write(offset + at, from); }
};

// Stretches of different memories, one behind the other.
class ScatteredMemory : public Memory {
 public:
  void add(const Block& block) {
    starts_.push_back(bytes_);
    blocks_.push_back(block);
    bytes_ += block.bytes;
  }
  Block whole() { return {this, 0, bytes_}; }

  void read(size_t offset, std::span<std::byte> to) const override {
    each(offset, to,
         [](const Block& block, size_t at, std::span<std::byte> part) { block.read(at, part); });
  }
  void write(size_t offset, std::span<const std::byte> from) override {
    each(offset, from, [](const Block& block, size_t at, std::span<const std::byte> part) {
      block.write(at, part);
    });
  }

 private:
  template <class Bytes, class Each>
  void each(size_t offset, Bytes bytes, const Each& visit) const {
    size_t i =
        size_t(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin()) - 1;
    for (; !bytes.empty(); ++i) {
      const size_t at = offset - starts_[i], count = std::min(bytes.size(), blocks_[i].bytes - at);
      visit(blocks_[i], at, bytes.first(count));
      bytes = bytes.subspan(count);
      offset += count;
    }
  }

  std::vector<size_t> starts_;
  std::vector<Block> blocks_;
  size_t bytes_ = 0;
};

// Plain memory of this process.
class HostMemory : public Memory {
 public:
  explicit HostMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  void read(size_t offset, std::span<std::byte> to) const override {
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
  }
  void write(size_t offset, std::span<const std::byte> from) override {
    std::memcpy(bytes_.data() + offset, from.data(), from.size());
  }
  Block block() { return {this, 0, bytes_.size()}; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace snug
