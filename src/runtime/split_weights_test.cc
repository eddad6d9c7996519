#include "runtime/split_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/dtype.h"

namespace snug {
namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

TEST(FloatHalves, AreExactTogether) {
  std::mt19937 random(3);
  std::vector<uint32_t> numbers = {0, 0x80000000u, 1, 0x80000001u, 0x7f7fffffu, 0xff7fffffu};
  for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    for (const uint32_t upper : {0x3f80u, 0xbf81u, 0x7f7fu, 0x0000u, 0x007fu}) {
      numbers.push_back(upper << 16 | lower);
    }
  }
  numbers.push_back(bits_of(std::numeric_limits<float>::infinity()));
  while (numbers.size() < 100000) numbers.push_back(random());
  for (const uint32_t bits : numbers) {
    if (std::isnan(std::bit_cast<float>(bits))) continue;
    ASSERT_EQ(join_float(split_float(bits)), bits) << std::hex << bits;
  }
}

TEST(FloatHalves, TheUpperOneIsTheNearest) {
  std::mt19937 random(4);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t bits = random();
    const uint16_t upper = split_float(bits).upper;
    const bool tie = (bits & 0xffffu) == 0x8000u;
    if (tie) {
      ASSERT_EQ(upper, uint16_t((bits >> 16) + 1)) << "away from zero";
    } else if (!std::isnan(std::bit_cast<float>(bits))) {
      ASSERT_EQ(upper, float_to_bfloat16(std::bit_cast<float>(bits))) << std::hex << bits;
    }
  }
}

TEST(FloatHalves, NanStaysNan) {
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xffc00000u}) {
    const FloatHalves halves = split_float(bits);
    EXPECT_TRUE(std::isnan(bfloat16_to_float(halves.upper))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(join_float(halves)))) << std::hex << bits;
  }
}

TEST(SplitWeights, AreReadAsTheyWereWritten) {
  constexpr size_t kCount = 300;
  std::vector<std::byte> upper(2 * kCount), lower(2 * kCount + 64);
  HostMemory uppers(upper), lowers(lower);
  SplitWeights weights({&uppers, 0, upper.size()}, {&lowers, 64, 2 * kCount});
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> written(kCount), read(kCount);
  for (float& value : written) value = normal(random);
  const auto bytes = std::as_bytes(std::span(written));
  weights.write(0, bytes.first(400));
  weights.write(400, bytes.subspan(400));
  weights.read(800, std::as_writable_bytes(std::span(read)).subspan(800));
  weights.read(0, std::as_writable_bytes(std::span(read)).first(800));
  EXPECT_EQ(read, written);
  for (size_t i = 0; i < kCount; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, upper.data() + 2 * i, 2);
    EXPECT_NEAR(bfloat16_to_float(half), written[i], std::abs(written[i]) / 256);
  }
}

}  // namespace
}  // namespace snug
