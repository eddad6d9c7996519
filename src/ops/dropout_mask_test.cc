#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dropout_mask_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/dropout_mask-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

void RowFactors(const DropoutMask& mask, const MaskRow& row, size_t columns, float* factors) {
  const FloatTag d;
  over_masked_row(mask, row, columns, [&](size_t i, auto access, FloatVector factor) HWY_ATTR {
    access.store(factor, d, factors + i);
  });
}

void AttentionDraws(const DropoutMask& mask, const MaskRow& first, size_t rows, size_t keys,
                    uint16_t* draws, size_t stride) {
  attention_draws(mask, first, rows, keys, draws, stride);
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/op_test_util.h"

namespace snug {
namespace {

HWY_EXPORT(RowFactors);
HWY_EXPORT(AttentionDraws);

DropoutMask mask_of(float p) {
  return dropout_mask(p, 0x123456, {.seed = 0xfedcba9876543210, .training = true});
}

TEST(DropoutMask, RowsAreWhatTheDefinitionSays) {
  on_each_target([] {
    const DropoutMask mask = mask_of(0.1f);
    const MaskRow row = {.sample = (uint64_t{5} << 32) + 17, .position = 99, .head = 0};
    for (size_t columns : {1, 7, 8, 9, 63, 64, 65, 128, 769}) {
      std::vector<float> factors(columns);
      HWY_DYNAMIC_DISPATCH(RowFactors)(mask, row, columns, factors.data());
      for (size_t c = 0; c < columns; ++c) {
        ASSERT_EQ(factors[c], mask_factor(mask, row, uint32_t(c))) << c << " of " << columns;
      }
    }
  });
}

TEST(DropoutMask, AttentionDrawsAreWhatTheDefinitionSays) {
  on_each_target([] {
    const DropoutMask mask = mask_of(0.1f);
    const MaskRow first = {.sample = 3, .position = 48, .head = 11};
    for (size_t rows : {1, 7, 8, 9, 48}) {
      for (size_t keys : {1, 8, 9, 130}) {
        const size_t stride = (keys + 7) / 8 * 8;
        std::vector<uint16_t> draws(rows * stride);
        HWY_DYNAMIC_DISPATCH(AttentionDraws)(mask, first, rows, keys, draws.data(), stride);
        for (size_t r = 0; r < rows; ++r) {
          MaskRow row = first;
          row.position += uint32_t(r);
          for (size_t k = 0; k < keys; ++k) {
            ASSERT_EQ(draws[r * stride + k], mask_draw(mask, row, uint32_t(k)));
          }
        }
      }
    }
  });
}

TEST(DropoutMask, IsOffWithoutTrainingAndWithoutProbability) {
  EXPECT_FALSE(dropout_mask(0.5f, 1, {.seed = 1, .training = false}).on());
  EXPECT_FALSE(dropout_mask(0.0f, 1, {.seed = 1, .training = true}).on());
  EXPECT_EQ(mask_factor(dropout_mask(0.5f, 1, {}), {}, 0), 1.0f);
}

TEST(DropoutMask, HasTheRightFrequencyAndExpectation) {
  for (float p : {0.1f, 0.5f}) {
    const DropoutMask mask = mask_of(p);
    constexpr int kRows = 400, kColumns = 768;
    double kept = 0.0, total = 0.0;
    std::vector<float> factors(kColumns);
    for (uint32_t r = 0; r < kRows; ++r) {
      HWY_DYNAMIC_DISPATCH(RowFactors)
      (mask, {.sample = r, .position = r % 7, .head = 0}, kColumns, factors.data());
      for (float f : factors) kept += f != 0.0f, total += f;
    }
    // Five standard deviations of a binomial share.
    const double n = kRows * kColumns, margin = 5.0 * std::sqrt(p * (1.0 - p) / n);
    EXPECT_NEAR(kept / n, 1.0 - p, margin);
    EXPECT_NEAR(total / n, 1.0, margin / (1.0 - p));
  }
}

TEST(DropoutMask, EveryPartOfTheCounterMatters) {
  const auto draws = [](const DropoutMask& mask, const MaskRow& row) {
    std::vector<uint32_t> result;
    for (uint32_t c = 0; c < 64; ++c) result.push_back(mask_draw(mask, row, c));
    return result;
  };
  const MaskRow row = {.sample = 1, .position = 2, .head = 3};
  const auto base = draws(mask_of(0.1f), row);
  MaskRow other = row;
  other.sample += uint64_t{1} << 32;
  EXPECT_NE(draws(mask_of(0.1f), other), base);
  other = row, other.position = 4;
  EXPECT_NE(draws(mask_of(0.1f), other), base);
  other = row, other.head = 4;
  EXPECT_NE(draws(mask_of(0.1f), other), base);
  EXPECT_NE(
      draws(dropout_mask(0.1f, 0x123457, {.seed = 0xfedcba9876543210, .training = true}), row),
      base);
  EXPECT_NE(
      draws(dropout_mask(0.1f, 0x123456, {.seed = 0xfedcba9876543211, .training = true}), row),
      base);
}

}  // namespace
}  // namespace snug
#endif  // HWY_ONCE
