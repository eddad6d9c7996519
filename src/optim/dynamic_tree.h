// Numbers in [0, 1) as codes of a few bits whose precision moves with their size: dynamic tree
// quantisation (Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2015). Leading
// zeros of a code count decades below one; the bits behind the first one divide that decade,
// [10^-(e + 1), 10^-e), into equal parts, of which the code means the middle. Code 0 is zero.
// Larger codes are larger numbers.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace snug {

constexpr double dynamic_tree_value(int bits, uint32_t code) {
  if (code == 0) return 0.0;
  const int fraction_bits = int(std::bit_width(code)) - 1, decade = bits - 1 - fraction_bits;
  double power = 1.0;
  for (int i = 0; i < decade; ++i) power /= 10.0;
  const auto parts = double(1u << fraction_bits);
  return power * (0.1 + 0.9 * (double(code) - parts + 0.5) / parts);
}

template <int kBits>
constexpr std::array<float, size_t{1} << kBits> make_dynamic_tree() {
  std::array<float, size_t{1} << kBits> values = {};
  for (uint32_t code = 0; code < values.size(); ++code) {
    values[code] = float(dynamic_tree_value(kBits, code));
  }
  return values;
}

// What a code means. First moments have seven bits and a sign above them, second moments eight.
inline constexpr std::array<float, 128> kMagnitudes = make_dynamic_tree<7>();
inline constexpr std::array<float, 256> kPositives = make_dynamic_tree<8>();

}  // namespace snug
