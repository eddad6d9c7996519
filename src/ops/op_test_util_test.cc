// Checkers that cannot fail check nothing: each of them is shown a fault here.
#include "ops/op_test_util.h"

namespace snug {
namespace {

TEST(Close, FailsWhereItMust) {
  EXPECT_TRUE(close("x", {1.0, 2.0}, {1.0, 2.0}, 0.0, 1));
  EXPECT_FALSE(close("x", {1.0, 2.0}, {1.0, 2.1}, 0.09, 1));
  EXPECT_FALSE(close("x", {1.0}, {1.0, 2.0}, 1.0, 1));
  EXPECT_FALSE(close("x", {1.0, NAN}, {1.0, 2.0}, 1e9, 1));
  EXPECT_FALSE(close("x", {1.0, 2.0}, {1.0, NAN}, 1e9, 1));
  const auto result = close("y", {0.0, 5.0, 1.0}, {0.0, 2.0, 0.5}, 0.25, 77);
  EXPECT_STREQ(result.message(), "y[1]: got 5, expected 2, tolerance 0.25, seed 77");
}

TEST(IsDerivative, FailsWhereItMust) {
  const auto square = [](const std::vector<Doubles>& x) {
    return x[0][0] * x[0][0] + 3.0 * x[0][1];
  };
  EXPECT_TRUE(is_derivative(square, {{2.0, 1.0}}, {{4.0, 3.0}}, 1));
  EXPECT_FALSE(is_derivative(square, {{2.0, 1.0}}, {{4.001, 3.0}}, 1));
}

TEST(GuardedTensor, NoticesWritesOutside) {
  GuardedTensor tensor(3, 5, DType::kF32);
  EXPECT_TRUE(tensor.guards_intact());
  EXPECT_TRUE(std::isnan(tensor.tensor().f32()[14]));
#ifndef __SANITIZE_ADDRESS__
  tensor.tensor().f32()[15] = 0.0f;
  EXPECT_FALSE(tensor.guards_intact());
#endif
}

}  // namespace
}  // namespace snug
