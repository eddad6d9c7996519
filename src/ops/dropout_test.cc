#include "ops/dropout.h"

#include "ops/dropout_mask.h"
#include "ops/op_test_util.h"

namespace snug {
namespace {

TEST(Dropout, MultipliesWithTheMaskInBothDirections) {
  on_each_target([] {
    for (int64_t hidden : {1, 7, 65, 768}) {
      for (bool accumulate : {false, true}) {
        const PackedBatch packed({1, 3, 17}, 3);
        OpHarness h(packed.batch, 4);
        h.step = {.seed = 6, .training = true};
        const Node node = {
            dropout({.p = 0.3f, .site = 2}), {h.random(3, hidden)}, {h.value(3, hidden)}};
        h.forward(node);
        const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
        h.want(node.inputs[0], accumulate);
        h.backward(node);
        Doubles y = h.doubles(node.inputs[0]), dx = dy;
        const DropoutMask mask = dropout_mask(0.3f, 2, h.step);
        for (size_t i = 0; i < y.size(); ++i) {
          const MaskRow row = sequence_mask_row(packed.batch, int64_t(i) / hidden);
          const double factor = mask_factor(mask, row, uint32_t(int64_t(i) % hidden));
          y[i] *= factor;
          dx[i] *= factor;
        }
        // One rounded product; sums of values below 16.
        EXPECT_TRUE(close("y", h.doubles(node.outputs[0]), y, kEps * largest(y), 4));
        EXPECT_TRUE(close("dx", h.gained(node.inputs[0]), dx,
                          kEps * (largest(dx) + (accumulate ? 8.0 : 0.0)), 4));
      }
    }
  });
}

TEST(Dropout, HasAMaskForEveryToken) {
  on_each_target([] {
    const PackedBatch packed({1, 3, 17}, 3);
    OpHarness h(packed.batch, 4);
    h.step = {.seed = 6, .training = true};
    const int64_t hidden = 65, tokens = packed.batch.dims.tokens;
    const Node node = {dropout({.p = 0.3f, .site = 2, .rows = Rows::kTokens}),
                       {h.random(tokens, hidden)},
                       {h.value(tokens, hidden)}};
    h.forward(node);
    Doubles y = h.doubles(node.inputs[0]);
    const DropoutMask mask = dropout_mask(0.3f, 2, h.step);
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] *= mask_factor(mask, token_mask_row(packed.batch, int64_t(i) / hidden),
                          uint32_t(int64_t(i) % hidden));
    }
    EXPECT_TRUE(close("y", h.doubles(node.outputs[0]), y, kEps * largest(y), 4));
  });
}

// Of a row that predicts it is that of its token, wherever in the micro-batch it lies.
TEST(Dropout, GivesTargetsTheMasksOfTheirTokens) {
  PackedBatch packed({1, 3, 17}, 3);
  const std::vector<int32_t> rows = {0, 2, 3, 9, 20};
  packed.batch.target_rows = rows.data();
  packed.batch.dims.targets = 5;
  OpHarness h(packed.batch, 4);
  h.step = {.seed = 6, .training = true};
  const int64_t hidden = 65;
  const Node node = {dropout({.p = 0.3f, .site = 2, .rows = Rows::kTargets}),
                     {h.random(5, hidden)},
                     {h.value(5, hidden)}};
  h.forward(node);
  Doubles y = h.doubles(node.inputs[0]);
  const DropoutMask mask = dropout_mask(0.3f, 2, h.step);
  for (size_t i = 0; i < y.size(); ++i) {
    const MaskRow row = token_mask_row(packed.batch, rows[i / size_t(hidden)]);
    y[i] *= mask_factor(mask, row, uint32_t(int64_t(i) % hidden));
  }
  EXPECT_TRUE(close("y", h.doubles(node.outputs[0]), y, kEps * largest(y), 4));
}

TEST(Dropout, IsTheIdentityWithoutTraining) {
  const PackedBatch packed({1, 3}, 3);
  OpHarness h(packed.batch, 4);
  const Node node = {dropout({.p = 0.3f, .site = 2}), {h.random(2, 9)}, {h.value(2, 9)}};
  h.forward(node);
  EXPECT_EQ(h.floats(node.outputs[0]), h.floats(node.inputs[0]));
}

}  // namespace
}  // namespace snug
