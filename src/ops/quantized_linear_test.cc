#include "ops/quantized_linear.h"

#include "ops/activation_reference.h"
#include "ops/op_test_util.h"
#include "ops/quantize.h"

namespace snug {
namespace {

struct Shape {
  int64_t rows, in, out;
};

std::vector<int8_t> bytes(const OpHarness& h, ValueId v) {
  const Tensor t = h.tensor(v);
  const auto* const data = static_cast<const int8_t*>(t.data);
  return {data, data + t.size()};
}

// A row as quantize.h defines it.
struct Row {
  Doubles integers;
  double scale;
};
Row quantized(const double* x, int64_t n) {
  double most = 0.0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  Row row{{}, double(float(most) / kQuantizedMax)};
  for (int64_t i = 0; i < n; ++i) {
    row.integers.push_back(
        most == 0.0 ? 0.0 : std::nearbyint(double(float(x[i]) * (kQuantizedMax / float(most)))));
  }
  return row;
}

Node node_of(OpHarness& h, Activation activation, const Shape& shape, bool bias = true) {
  const ValueId exact = h.random(shape.out, shape.in, 1.0 / std::sqrt(double(shape.in)));
  const ValueId w = h.value(shape.out, shape.in, DType::kI8), scales = h.value(1, shape.out);
  quantize_rows(h.tensor(exact).f32(), shape.out, shape.in, static_cast<int8_t*>(h.tensor(w).data),
                h.tensor(scales).f32());
  Node node = {.op = quantized_linear({activation}),
               .inputs = {kNoValue, w, scales, bias ? h.random(1, shape.out) : kNoValue},
               .outputs = {h.value(shape.rows, shape.out)}};
  // Last, so that its first rows do not depend on how many there are.
  node.inputs[0] = h.random(shape.rows, shape.in);
  if (keeps_pre_activation(activation)) node.outputs.push_back(h.value(shape.rows, shape.out));
  return node;
}

void check_case(Activation activation, const Shape& shape, bool accumulate, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "activation " << int(activation) << ", rows " << shape.rows
                                  << ", in " << shape.in << ", out " << shape.out);
  const Batch batch;
  OpHarness h(batch, seed);
  const bool bias = seed % 3 != 0;
  const Node node = node_of(h, activation, shape, bias);
  const Doubles x = h.doubles(node.inputs[0]), scales = h.doubles(node.inputs[2]);
  const Doubles b = bias ? h.doubles(node.inputs[3]) : Doubles(size_t(shape.out), 0.0);
  const std::vector<int8_t> w = bytes(h, node.inputs[1]);
  h.forward(node);
  Doubles pre, y;
  double largest_product = 0.0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const Row row = quantized(x.data() + r * shape.in, shape.in);
    for (int64_t o = 0; o < shape.out; ++o) {
      double sum = 0.0;
      for (int64_t i = 0; i < shape.in; ++i) {
        sum += row.integers[size_t(i)] * w[size_t(o * shape.in + i)];
      }
      largest_product = std::max(largest_product, std::abs(sum * row.scale * scales[size_t(o)]));
      pre.push_back(sum * row.scale * scales[size_t(o)] + b[size_t(o)]);
      y.push_back(activate(activation, pre.back()));
    }
  }
  // Integer sums are exact: what rounds are the conversion, two factors, the bias and the
  // activation.
  const double pre_error = 4.0 * kEps * (largest_product + largest(b));
  EXPECT_TRUE(
      close("y", h.doubles(node.outputs[0]), y, 1.13 * pre_error + 4e-7 + kEps * largest(y), seed));
  if (keeps_pre_activation(activation)) {
    EXPECT_TRUE(close("pre", h.doubles(node.outputs[1]), pre, pre_error, seed));
  }

  const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
  h.want(node.inputs[0], accumulate);
  if (bias) h.want(node.inputs[3], true);
  h.backward(node);
  Doubles exact(w.size()), dx(x.size()), db(size_t(shape.out));
  for (size_t i = 0; i < w.size(); ++i) exact[i] = w[i] * scales[i / size_t(shape.in)];
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t o = 0; o < shape.out; ++o) {
      const double d =
          dy[size_t(r * shape.out + o)] * slope(activation, pre[size_t(r * shape.out + o)]);
      db[size_t(o)] += d;
      for (int64_t i = 0; i < shape.in; ++i) {
        dx[size_t(r * shape.in + i)] += d * exact[size_t(o * shape.in + i)];
      }
    }
  }
  // As in linear_test.cc.
  const double relative = pre_error + 16.0 * kEps, before = 16.0 * kEps;
  const double dx_error = relative * 1.13 * largest_row_norm(dy, size_t(shape.out)) *
                          largest_column_norm(exact, size_t(shape.in));
  const double db_error =
      relative * 1.13 * largest_column_norm(dy, size_t(shape.out)) * std::sqrt(double(shape.rows));
  EXPECT_TRUE(close("dx", h.gained(node.inputs[0]), dx, dx_error + before, seed));
  if (bias) {
    EXPECT_TRUE(close("db", h.gained(node.inputs[3]), db, db_error + before, seed));
  }
}

constexpr Shape kShapes[] = {{1, 1, 1},    {3, 3, 3},    {6, 33, 34},   {7, 5, 9},     {13, 17, 31},
                             {33, 67, 65}, {193, 36, 7}, {200, 64, 97}, {25, 130, 300}};

void check_all() {
  uint64_t seed = 1;
  for (Activation activation : kAllActivations) {
    for (const Shape& shape : kShapes) {
      check_case(activation, shape, seed % 2 == 0, seed);
      ++seed;
    }
  }
}

TEST(QuantizedLinear, MatchesReference) { on_each_target(check_all); }

// on_each_target() does not know of the targets that are there for these products alone.
TEST(QuantizedLinear, MatchesReferenceOnTheBestTarget) { check_all(); }

TEST(QuantizedLinear, DoesNotDependOnThreadsOrOtherRows) {
  const auto first_row = [](int64_t rows) {
    const Batch batch;
    OpHarness h(batch, 4);
    const Node node = node_of(h, Activation::kGelu, {rows, 70, 333});
    h.forward(node);
    std::vector<float> y = h.floats(node.outputs[0]);
    y.resize(333);
    return y;
  };
  EXPECT_EQ(first_row(1), first_row(5));
  EXPECT_EQ(first_row(1), first_row(100));
  expect_same_on_two_threads([&] { return std::vector<std::vector<float>>{first_row(210)}; });
}

// With adapters: what the layer gives without them and without activation, plus theirs, then the
// activation; and their gradients are those of a layer in fp32.
TEST(QuantizedLinear, AddsAdaptersBeforeTheActivation) {
  for (Activation activation : kAllActivations) {
    const Batch batch;
    OpHarness h(batch, 3);
    const Shape shape = {20, 33, 24};
    Node node = node_of(h, activation, shape);
    const Node plain = {quantized_linear({}), node.inputs, {h.value(shape.rows, shape.out)}};
    h.forward(plain);
    const ValueId u = h.random(shape.rows, 3), up = h.random(8, 3);
    node.op = quantized_linear(
        {.activation = activation, .adapters = {.first_columns = {16}, .scale = 0.5f}});
    node.inputs.insert(node.inputs.end(), {u, up});
    h.forward(node);
    Doubles pre = h.doubles(plain.outputs[0]), y(pre.size());
    for (size_t r = 0; r < 20; ++r) {
      for (size_t o = 0; o < 8; ++o) {
        for (size_t i = 0; i < 3; ++i) {
          pre[r * 24 + 16 + o] += 0.5 * h.doubles(u)[r * 3 + i] * h.doubles(up)[o * 3 + i];
        }
      }
    }
    for (size_t i = 0; i < pre.size(); ++i) y[i] = activate(activation, pre[i]);
    EXPECT_TRUE(close("y", h.doubles(node.outputs[0]), y, 4e-6, 3)) << int(activation);

    const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
    h.want(u, false);
    h.want(up, true);
    h.backward(node);
    Doubles du(60), dup(24);
    for (size_t r = 0; r < 20; ++r) {
      for (size_t o = 0; o < 8; ++o) {
        const double d = 0.5 * dy[r * 24 + 16 + o] * slope(activation, pre[r * 24 + 16 + o]);
        for (size_t i = 0; i < 3; ++i) {
          du[r * 3 + i] += d * h.doubles(up)[o * 3 + i];
          dup[o * 3 + i] += d * h.doubles(u)[r * 3 + i];
        }
      }
    }
    EXPECT_TRUE(close("du", h.gained(u), du, 1e-4, 3)) << int(activation);
    EXPECT_TRUE(close("dup", h.gained(up), dup, 1e-4, 3)) << int(activation);
  }
}

// Where everything is as large as it can be, sums reach in * 127 * 127.
TEST(QuantizedLinear, SumsDoNotOverflow) {
  on_each_target([] {
    constexpr int64_t kIn = 65536;
    const Batch batch;
    for (int64_t rows : {1, 7}) {
      OpHarness h(batch, 1);
      const Node node = {quantized_linear({}),
                         {h.filled(rows, kIn, std::vector<float>(size_t(rows * kIn), -2.0f)),
                          h.value(1, kIn, DType::kI8), h.filled(1, 1, {1.0f}), kNoValue},
                         {h.value(rows, 1)}};
      std::memset(h.tensor(node.inputs[1]).data, -127, kIn);
      h.forward(node);
      for (double y : h.doubles(node.outputs[0])) EXPECT_NEAR(y, 2.0 * 127 * kIn, 4.0);
    }
  });
}

TEST(QuantizedLinear, LetsNanThrough) {
  const Batch batch;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    OpHarness h(batch, 2);
    const Node node = node_of(h, Activation::kNone, {9, 40, 8});
    h.tensor(node.inputs[0]).f32()[40 + 7] = bad;
    h.forward(node);
    const Doubles y = h.doubles(node.outputs[0]);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i / 8 != 1) << i;
  }
}

TEST(Quantize, RoundsToTheNearestMultipleOfTheScale) {
  on_each_target([] {
    for (int64_t cols : {1, 5, 16, 67}) {
      const Batch batch;
      OpHarness h(batch, uint64_t(cols));
      const ValueId x = h.random(3, cols), q = h.value(3, cols, DType::kI8), scales = h.value(1, 3),
                    back = h.value(3, cols);
      std::fill_n(h.tensor(x).f32() + cols, cols, 0.0f);
      quantize_rows(h.tensor(x).f32(), 3, cols, static_cast<int8_t*>(h.tensor(q).data),
                    h.tensor(scales).f32());
      dequantize_rows(static_cast<const int8_t*>(h.tensor(q).data), h.tensor(scales).f32(), 3, cols,
                      h.tensor(back).f32());
      const std::vector<int8_t> got = bytes(h, q);
      const Doubles values = h.doubles(x), restored = h.doubles(back);
      for (int64_t r = 0; r < 3; ++r) {
        const Row row = quantized(values.data() + r * cols, cols);
        EXPECT_EQ(h.doubles(scales)[size_t(r)], row.scale);
        for (int64_t c = 0; c < cols; ++c) {
          const auto at = size_t(r * cols + c);
          EXPECT_EQ(double(got[at]), row.integers[size_t(c)]);
          EXPECT_NEAR(restored[at], values[at], row.scale * 0.5001);
        }
      }
    }
  });
}

}  // namespace
}  // namespace snug
