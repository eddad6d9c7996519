#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/philox.h"

namespace snug {

Permutation::Permutation(uint64_t rows, uint64_t seed, uint64_t epoch) : rows_(rows) {
  // At least 256 values to walk: halves of one or two bits are too few for rounds to mix.
  const int bits = rows > 1 ? std::bit_width(rows - 1) : 0;
  half_bits_ = std::max((bits + 1) / 2, 4);
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  uint64_t key = mix64(mix64(seed) ^ epoch);
  for (uint64_t& round_key : keys_) round_key = key = mix64(key);
}

uint64_t Permutation::operator()(uint64_t position) const {
  SNUG_CHECK(position < rows_);
  uint64_t value = position;
  do {
    uint64_t left = value >> half_bits_, right = value & half_mask_;
    for (const uint64_t key : keys_) {
      const uint64_t mixed = left ^ (mix64(right ^ key) & half_mask_);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= rows_);
  return value;
}

}  // namespace snug
