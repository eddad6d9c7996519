// A stateless shuffle: position i of an epoch's order is a pure function of (seed, epoch, rows), so
// resuming replays nothing and 20 million rows need no index in memory. A Feistel network over an
// even power of two, walked until it lands inside [0, rows).
#pragma once

#include <array>
#include <cstdint>

namespace snug {

class Permutation {
 public:
  Permutation(uint64_t rows, uint64_t seed, uint64_t epoch);
  uint64_t operator()(uint64_t position) const;  // a bijection of [0, rows)

 private:
  static constexpr int kRounds = 6;
  uint64_t rows_;
  int half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace snug
