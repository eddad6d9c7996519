#include "runtime/engine.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(LossScale, HalvesOnOverflowAndGrowsAfterManyCleanSteps) {
  LossScale scale;
  scale.after_step(false);
  EXPECT_EQ(scale.scale, 32768);
  for (int i = 0; i < 1999; ++i) scale.after_step(true);
  EXPECT_EQ(scale.scale, 32768);
  scale.after_step(true);
  EXPECT_EQ(scale.scale, 65536);
  EXPECT_EQ(scale.clean_steps, 0);
}

TEST(LossScale, GivesUpAfterFailuresInARow) {
  LossScale scale;
  for (int i = 0; i < 20; ++i) scale.after_step(false);
  EXPECT_FALSE(scale.hopeless());
  scale.after_step(true);
  for (int i = 0; i < 21; ++i) scale.after_step(false);
  EXPECT_TRUE(scale.hopeless());
}

}  // namespace
}  // namespace snug
