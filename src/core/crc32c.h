// CRC-32C (Castagnoli), the checksum of LevelDB's and TensorFlow's files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace snug {

// Of the bytes that gave `before`, and these behind them.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// As those files store it: a checksum over data that holds checksums is no good, so it is rotated
// and shifted.
constexpr uint32_t masked_crc32c(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }
constexpr uint32_t unmasked_crc32c(uint32_t stored) {
  const uint32_t rotated = stored - 0xa282ead8u;
  return rotated >> 17 | rotated << 15;
}

}  // namespace snug
