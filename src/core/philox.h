// Counter-based randomness: Philox4x32 (Salmon et al. 2011), with ten rounds unless said otherwise.
// A draw is a pure function of (key, counter), so a dropout mask does not know how examples were
// packed, and resuming has nothing to replay.
#pragma once

#include <array>
#include <cstdint>

namespace snug {

inline constexpr uint32_t kPhiloxMul0 = 0xD2511F53, kPhiloxMul1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;

template <int kRounds = 10>
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMul0} * c[0], p1 = uint64_t{kPhiloxMul1} * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ key[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ key[1],
         uint32_t(p0)};
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return c;
}

// SplitMix64's finaliser: spreads small integers (seeds, steps, names' hashes) over 64 bits.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace snug
