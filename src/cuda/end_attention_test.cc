// The kernels of ops/end_attention.h against the operator on the CPU.
#include "ops/end_attention.h"

#include "cuda/cuda_test_util.h"
#include "cuda/products.h"

namespace snug::cuda {
namespace {

struct Case {
  EndAttentionSpec spec;
  std::vector<int> lengths;
  bool accumulate;
};

const std::vector<Case> kCases = {
    {{1, 1, 0.0f, 3}, {1}, false},          {{2, 3, 0.1f, 3}, {5, 1, 9}, true},
    {{3, 17, 0.5f, 1}, {100, 3, 60}, true}, {{12, 64, 0.1f, 7}, {1, 33, 200, 17}, false},
    {{16, 64, 0.1f, 7}, {512, 31}, true},   {{9, 80, 0.0f, 1}, std::vector<int>(40, 7), false}};

void check_case(const Case& test, DType dtype, uint64_t seed, Products& products) {
  const auto& [spec, lengths, accumulate] = test;
  const PackedBatch packed(lengths, seed);
  Dims bucket = packed.batch.dims;
  if (seed % 2) bucket = {bucket.tokens + 5, bucket.sequences + 2, bucket.longest + 3};
  CudaCase c(packed, bucket, seed);
  c.products = &products;
  const int64_t hidden = spec.hidden(), wide = spec.heads * hidden;
  const auto rows = [&](Rows rows_are, int64_t cols, DType type) {
    return TensorDesc{type, rows_are, 1, cols};
  };
  const auto fixed = [](int64_t count, int64_t cols, DType type) {
    return TensorDesc{type, Rows::kFixed, count, cols};
  };
  const ValueId x = c.random(rows(Rows::kTokens, hidden, dtype)),
                ends = c.random(rows(Rows::kSequences, hidden, dtype));
  const ValueId w = c.random(fixed(3 * hidden, hidden, dtype), 1.0 / std::sqrt(double(hidden)));
  const ValueId b = c.random(fixed(1, 3 * hidden, dtype));
  const TensorDesc q = rows(Rows::kSequences, hidden, dtype),
                   p = rows(Rows::kTokens, spec.heads, DType::kF32);
  const TensorDesc means = rows(Rows::kSequences, wide, DType::kF32),
                   kept = rows(Rows::kSequences, spec.heads, DType::kF32);
  const EndAttention op(spec);
  const std::vector<ValueId> out = {c.output(q), c.output(q), c.output(p), c.output(means),
                                    c.output(kept)};
  // Queries are rounded to the type, and what follows from them is as exact as they are: scores of
  // about one and more move.
  const double error = dtype_error(dtype);
  c.check(op, {x, ends, w, b}, out, 8.0, error);
  const auto made = c.reference(op, {x, ends, w, b}, out);
  const ValueId d_o = c.random(q, 1.0, 0.0, 0.0);
  const std::vector<ValueId> in = {x,
                                   ends,
                                   w,
                                   b,
                                   c.input(q, made[1], 0.0),
                                   c.input(p, made[2]),
                                   c.input(means, made[3], 0.0),
                                   c.input(kept, made[4], 0.0),
                                   d_o};
  const std::vector<ValueId> gradients = {c.target(rows(Rows::kTokens, hidden, dtype), accumulate),
                                          c.target(q, accumulate),
                                          c.target(fixed(3 * hidden, hidden, DType::kF32), true),
                                          c.target(fixed(1, 3 * hidden, DType::kF32), true)};
  const EndAttentionGradient gradient(spec, accumulate, accumulate);
  c.check(gradient, in, gradients, 8.0, error);
}

TEST(CudaEndAttention, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  TestProducts products(gpu);
  uint64_t seed = 1;
  for (const DType dtype : types_here()) {
    for (const Case& test : kCases) {
      SCOPED_TRACE(testing::Message()
                   << dtype_name(dtype) << ", " << test.spec.heads << " heads of "
                   << test.spec.head_dim << ", dropout " << test.spec.dropout << ", seed " << seed);
      check_case(test, dtype, seed++, products);
    }
  }
}

// A weight's gradient: added to zeros, or in the only pass written over what was there, in fp32 or
// rounded.
Doubles weight_gradient(TestProducts& products, DType dtype, bool only_pass, DType gradient_type) {
  const EndAttentionSpec spec{2, 16, 0.1f, 3};
  const PackedBatch packed({9, 30}, 1);
  const int64_t hidden = spec.hidden();
  const auto rows = [&](Rows rows_are, int64_t cols) {
    return TensorDesc{dtype, rows_are, 1, cols};
  };
  CudaCase c(packed, packed.batch.dims, 2);
  c.products = &products;
  const ValueId token_rows = c.random(rows(Rows::kTokens, hidden)),
                ends = c.random(rows(Rows::kSequences, hidden));
  const ValueId w = c.random({dtype, Rows::kFixed, 3 * hidden, hidden}),
                b = c.random({dtype, Rows::kFixed, 1, 3 * hidden});
  const ValueId q = c.random(rows(Rows::kSequences, hidden)),
                p = c.random({DType::kF32, Rows::kTokens, 1, spec.heads});
  const ValueId means = c.random({DType::kF32, Rows::kSequences, 1, spec.heads * hidden}),
                kept = c.random({DType::kF32, Rows::kSequences, 1, spec.heads});
  const ValueId d_o = c.random(rows(Rows::kSequences, hidden));
  const TensorDesc weight{gradient_type, Rows::kFixed, 3 * hidden, hidden};
  const ValueId dw =
      only_pass ? c.output(weight) : c.input(weight, Doubles(size_t(3 * hidden * hidden), 0.0));
  const EndAttentionGradient gradient(spec, false, false);
  const std::vector<ValueId> in = {token_rows, ends, w, b, q, p, means, kept, d_o},
                             out = {kNoValue, kNoValue, dw, kNoValue};
  const auto results = c.launch_with(gradient, in, out, [&](Launch call) {
    call.only_pass = only_pass;
    launch(gradient, call);
  });
  return decoded(results[2], gradient_type);
}

TEST(CudaEndAttention, WritesTheWeightsGradientInTheOnlyPass) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  TestProducts products(gpu);
  for (const DType dtype : {DType::kF32, half_here()}) {
    const Doubles exact = weight_gradient(products, dtype, false, DType::kF32);
    EXPECT_EQ(exact, weight_gradient(products, dtype, true, DType::kF32));
    EXPECT_EQ(decoded(encoded(exact, dtype), dtype), weight_gradient(products, dtype, true, dtype));
  }
}

}  // namespace
}  // namespace snug::cuda
