#include "plan/plan_choice.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(OffloadText, IsReadAsItIsWritten) {
  for (const Offload offload : {Offload::kNone, Offload::kState, Offload::kGradients}) {
    for (const bool activations : {false, true}) {
      const PlanChoice choice{.offload = offload, .activations_outside = activations};
      PlanChoice read{.offload = Offload::kState, .activations_outside = !activations};
      ASSERT_TRUE(parse_offload(offload_text(choice), read)) << offload_text(choice);
      EXPECT_TRUE(read == choice) << offload_text(choice);
    }
  }
  EXPECT_EQ(offload_text({}), "none");
  EXPECT_EQ(offload_text({.offload = Offload::kGradients, .activations_outside = true}),
            "gradients,activations");
  PlanChoice read;
  ASSERT_TRUE(parse_offload("activations,state,gradients", read));
  EXPECT_TRUE(read == (PlanChoice{.offload = Offload::kGradients, .activations_outside = true}));
  for (const char* wrong :
       {"", "auto", "states", "state,", ",state", "state, gradients", "none,state", "state,none"}) {
    EXPECT_FALSE(parse_offload(wrong, read)) << wrong;
  }
}

}  // namespace
}  // namespace snug
