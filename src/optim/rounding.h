// Stochastic rounding: up with the probability that makes the expectation exact, so that many
// updates smaller than the distance of two numbers add up to what they should. A draw is a pure
// function of (seed, step, parameter, array, element): it knows neither threads nor devices, and a
// resumed run draws the same. One Philox call yields eight 16-bit draws, for eight consecutive
// elements; rounding-inl.h gives the same bits.
#pragma once

#include <array>
#include <cstdint>

#include "core/philox.h"

namespace snug {

enum class RoundedArray : uint32_t { kWeights, kFirstMoments, kSecondMoments };

// The fewest that pass every test of the generator's authors.
inline constexpr int kRoundingRounds = 7;

// All draws of one parameter in one step.
struct RoundingDraws {
  std::array<uint32_t, 2> key = {};
  uint32_t parameter = 0;  // index in the model's table, below 2^30
  uint64_t step = 0;
};

constexpr RoundingDraws rounding_draws(uint64_t seed, int64_t step, uint64_t parameter) {
  const uint64_t key = mix64(seed + 0x5eed0f0ddull);  // away from the keys of dropout
  return {{uint32_t(key), uint32_t(key >> 32)}, uint32_t(parameter), uint64_t(step)};
}

// `block`: of eight elements.
constexpr std::array<uint32_t, 4> rounding_counter(const RoundingDraws& draws, RoundedArray array,
                                                   uint32_t block) {
  return {block, draws.parameter << 2 | uint32_t(array), uint32_t(draws.step),
          uint32_t(draws.step >> 32)};
}

// Below 2^16: the halves of the four words in order, low half first.
constexpr uint32_t rounding_draw(const RoundingDraws& draws, RoundedArray array, uint64_t element) {
  const auto words =
      philox<kRoundingRounds>(rounding_counter(draws, array, uint32_t(element / 8)), draws.key);
  const uint32_t half = uint32_t(element % 8);
  return words[half / 2] >> (half % 2 * 16) & 0xffff;
}

// The bits of an fp32 number to those of a bf16 number. What is not finite stays so.
constexpr uint16_t round_to_bfloat16(uint32_t bits, uint32_t draw) {
  if ((bits & 0x7f800000u) == 0x7f800000u) {
    return uint16_t(bits >> 16 | ((bits & 0x7fffffu) != 0 ? 0x40u : 0u));
  }
  return uint16_t((bits + draw) >> 16);
}

}  // namespace snug
