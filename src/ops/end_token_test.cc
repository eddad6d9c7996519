#include "ops/end_token.h"

#include "ops/op_test_util.h"

namespace snug {
namespace {

void check_end_token(End end) {
  for (int64_t hidden : {1, 7, 64}) {
    for (bool accumulate : {false, true}) {
      const PackedBatch packed({1, 3, 17, 300, 2}, 3);
      OpHarness h(packed.batch, 4);
      const int64_t tokens = packed.batch.dims.tokens;
      const Node node = {end_token(end), {h.random(tokens, hidden)}, {h.value(5, hidden)}};
      h.forward(node);
      const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
      h.want(node.inputs[0], accumulate);
      h.backward(node);
      const Doubles x = h.doubles(node.inputs[0]), y = h.doubles(node.outputs[0]);
      Doubles dx(x.size());
      for (size_t s = 0; s < 5; ++s) {
        for (size_t c = 0; c < size_t(hidden); ++c) {
          const int32_t token = end == End::kFirst ? packed.starts[s] : packed.starts[s + 1] - 1;
          const size_t at = size_t(token) * size_t(hidden) + c;
          EXPECT_EQ(y[s * size_t(hidden) + c], x[at]);
          dx[at] = dy[s * size_t(hidden) + c];
        }
      }
      // Copies, exact; added to values below 8, half an ulp of 16.
      EXPECT_TRUE(close("dx", h.gained(node.inputs[0]), dx, accumulate ? 8.0 * kEps : 0.0, 4));
    }
  }
}

TEST(EndToken, GathersAndScattersTheFirst) { check_end_token(End::kFirst); }
TEST(EndToken, GathersAndScattersTheLast) { check_end_token(End::kLast); }

}  // namespace
}  // namespace snug
