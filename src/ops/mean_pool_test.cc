#include "ops/mean_pool.h"

#include "ops/op_test_util.h"

namespace snug {
namespace {

std::vector<float> pooled(const PackedBatch& packed, int64_t hidden, Doubles& x) {
  OpHarness h(packed.batch, 4);
  const Node node = {mean_pool(),
                     {h.random(packed.batch.dims.tokens, hidden)},
                     {h.value(packed.batch.dims.sequences, hidden)}};
  h.forward(node);
  x = h.doubles(node.inputs[0]);
  return h.floats(node.outputs[0]);
}

TEST(MeanPool, MatchesReference) {
  const PackedBatch packed({1, 3, 17, 300, 2}, 3);
  for (size_t hidden : {size_t{1}, size_t{7}, size_t{65}}) {
    Doubles x, expected(5 * hidden);
    const std::vector<float> y = pooled(packed, int64_t(hidden), x);
    for (size_t s = 0; s < 5; ++s) {
      const size_t begin = size_t(packed.starts[s]), end = size_t(packed.starts[s + 1]);
      for (size_t c = 0; c < hidden; ++c) {
        for (size_t t = begin; t < end; ++t) {
          expected[s * hidden + c] += x[t * hidden + c] / double(end - begin);
        }
      }
    }
    // A mean of n values below `largest` is off by a random walk of sqrt(n) roundings of sums over
    // n: below 4 eps of it.
    EXPECT_TRUE(close("y", Doubles(y.begin(), y.end()), expected, 4.0 * kEps * largest(x), 4))
        << hidden;
  }
}

TEST(MeanPool, DoesNotDependOnThreads) {
  expect_same_on_two_threads([] {
    Doubles x;
    return std::vector<std::vector<float>>{pooled(PackedBatch({1, 30, 17}, 3), 33, x)};
  });
}

}  // namespace
}  // namespace snug
