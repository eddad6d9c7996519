#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace snug {
namespace {

TEST(Schedule, WarmsUpThenDecaysToZero) {
  const Schedule linear{ScheduleKind::kLinear, 1.0, 10, 110};
  EXPECT_DOUBLE_EQ(linear.rate(0), 0.0);
  EXPECT_DOUBLE_EQ(linear.rate(5), 0.5);
  EXPECT_DOUBLE_EQ(linear.rate(10), 1.0);
  EXPECT_DOUBLE_EQ(linear.rate(60), 0.5);
  EXPECT_DOUBLE_EQ(linear.rate(110), 0.0);
  const Schedule cosine{ScheduleKind::kCosine, 2.0, 0, 100};
  EXPECT_DOUBLE_EQ(cosine.rate(0), 2.0);
  EXPECT_NEAR(cosine.rate(50), 1.0, 1e-12);
  EXPECT_NEAR(cosine.rate(100), 0.0, 1e-12);
  const Schedule constant{ScheduleKind::kConstant, 3.0, 4, 100};
  EXPECT_DOUBLE_EQ(constant.rate(2), 1.5);
  EXPECT_DOUBLE_EQ(constant.rate(99), 3.0);
}

TEST(Schedule, MoreWarmUpThanStepsStaysFinite) {
  const Schedule schedule{ScheduleKind::kLinear, 1.0, 50, 10};
  for (uint64_t step = 0; step < 60; ++step) EXPECT_LE(schedule.rate(step), 1.0);
}

TEST(Schedule, UnknownNameIsAUsageError) { EXPECT_THROW(parse_schedule("polynomial"), Error); }

}  // namespace
}  // namespace snug
