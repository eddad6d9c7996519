#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "core/crc32c.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/json.h"
#include "core/philox.h"

namespace snug {
namespace {

TEST(Half, EveryBitPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(uint16_t(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(float_to_half(value), bits) << value;
    const float wide = bfloat16_to_float(uint16_t(bits));
    if (!std::isnan(wide)) {
      EXPECT_EQ(float_to_bfloat16(wide), bits);
    }
  }
}

TEST(Half, RoundsToNearestEvenAndSaturatesToInfinity) {
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), float_to_half(1.0f));  // tie goes to even
  // Tie goes to even, upwards.
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), float_to_half(1.0f) + 2);
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(0x1p-25f), 0);  // tie with zero
  EXPECT_EQ(float_to_half(0x1.8p-25f), 1);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::numeric_limits<float>::quiet_NaN()))));
}

// The known-answer vectors of the Random123 distribution.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

// The check value of the algorithm, and vectors of RFC 3720.
TEST(Crc32c, KnownAnswers) {
  const auto of = [](std::string_view text) { return crc32c(std::as_bytes(std::span(text))); };
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xe3069283u);
  EXPECT_EQ(of(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(of(std::string(32, '\xff')), 0x62a8ab43u);
  const std::string_view text = "the same in pieces";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text.substr(7))), of(text.substr(0, 7))), of(text));
  EXPECT_EQ(unmasked_crc32c(0xa282ead8u), 0u);
}

TEST(ParseJson, RefusesDuplicatesDepthAndSaysWhere) {
  EXPECT_EQ(parse_json(R"({"a": [1, 2]})", "x.json")["a"][1], 2);
  EXPECT_THROW(parse_json(R"({"a": 1, "a": 2})", "x.json"), Error);
  EXPECT_THROW(parse_json(std::string(100'000, '['), "x.json"), Error);
  EXPECT_THROW(parse_json(std::string_view("{}\0junk", 7), "x.json"), Error);
  try {
    parse_json("{\"a\": oops}", "x.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(error.what()).find("x.json: not valid JSON at byte 7"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace snug
