// Outputs that are made again from what is kept have the bits of the forward pass, on every
// instruction set and for every width.
#include "ops/linear.h"
#include "ops/op_test_util.h"
#include "ops/residual_norm.h"

namespace snug {
namespace {

constexpr int64_t kWidths[] = {1, 7, 16, 17, 64, 129};

void expect_same_bits(OpHarness& h, const Node& node, Part part) {
  h.forward(node);
  const auto remake = node.op->remake(node, 0);
  ASSERT_TRUE(remake.has_value());
  EXPECT_EQ(remake->part, part);
  const Tensor y = h.tensor(node.outputs[0]);
  const ValueId again = h.value(y.rows, y.cols);
  h.emit(remake->op, remake->inputs, {again});
  EXPECT_EQ(h.floats(again), h.floats(node.outputs[0]))
      << node.op->name() << ", " << y.cols << " columns";
}

TEST(Remake, ActivationsFollowFromTheirArgument) {
  on_each_target([] {
    for (Activation activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
      for (const int64_t width : kWidths) {
        const PackedBatch packed({5, 8}, 3);
        OpHarness h(packed.batch, uint64_t(width));
        const Node node{linear({.activation = activation}),
                        {h.random(13, 9), h.random(width, 9), h.random(1, width)},
                        {h.value(13, width), h.value(13, width)}};
        expect_same_bits(h, node, Part::kActivations);
      }
    }
  });
}

TEST(Remake, NormsFollowFromSumAndStatistics) {
  on_each_target([] {
    for (const int64_t width : kWidths) {
      const PackedBatch packed({5, 8}, 3);
      OpHarness h(packed.batch, uint64_t(width));
      h.step = {.seed = 5, .training = true, .loss_scale = 1.0f};
      const ValueId gamma = h.random(1, width), beta = h.random(1, width), x = h.random(13, width);
      expect_same_bits(h,
                       {residual_norm({.hidden = width, .dropout = 0.1f, .site = 4}),
                        {x, h.random(13, width), gamma, beta},
                        {h.value(13, width), h.value(13, width), h.value(13, 2)}},
                       Part::kNorms);
      expect_same_bits(
          h,
          {layer_norm({.hidden = width}), {x, gamma, beta}, {h.value(13, width), h.value(13, 2)}},
          Part::kNorms);
    }
  });
}

// Without what it would be made from.
TEST(Remake, IsNotOfferedWhereNothingIsKept) {
  const Node plain{linear({}), {0, 1, 2}, {3}},
      inference{linear({.activation = Activation::kGelu}), {0, 1, 2}, {3, kNoValue}};
  EXPECT_FALSE(plain.op->remake(plain, 0).has_value());
  EXPECT_FALSE(inference.op->remake(inference, 0).has_value());
  const Node norm{residual_norm({}), {0, 1, 2, 3}, {4, kNoValue, kNoValue}};
  EXPECT_FALSE(norm.op->remake(norm, 0).has_value());
}

}  // namespace
}  // namespace snug
