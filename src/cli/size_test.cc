#include "cli/size.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace snug {
namespace {

TEST(ParseSize, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(parse_size("8GB"), 8'000'000'000u);
  EXPECT_EQ(parse_size("8G"), 8'000'000'000u) << "the smaller reading";
  EXPECT_EQ(parse_size("512 MiB"), uint64_t{512} << 20);
  EXPECT_EQ(parse_size("1.5gib"), uint64_t{3} << 29);
  EXPECT_EQ(parse_size("123"), 123u);
  EXPECT_EQ(parse_size("0"), 0u);
}

TEST(ParseSize, RefusesEverythingElse) {
  for (const char* text :
       {"", "GiB", "-1GiB", "nan", "inf", "8 bananas", "8GiBs", "1e30GiB", "--", "8,5GB"}) {
    EXPECT_THROW(parse_size(text), Error) << text;
  }
}

}  // namespace
}  // namespace snug
