#include "ops/linear.h"

#include <set>

#include "ops/activation_reference.h"
#include "ops/op_test_util.h"

namespace snug {
namespace {

struct Shape {
  size_t rows, in, out;
};

// The plain loops.
struct Reference {
  Shape shape;
  Activation activation;

  Doubles pre(const Doubles& x, const Doubles& w, const Doubles& b) const {
    Doubles y(shape.rows * shape.out);
    for (size_t r = 0; r < shape.rows; ++r) {
      for (size_t o = 0; o < shape.out; ++o) {
        double sum = b[o];
        for (size_t i = 0; i < shape.in; ++i) sum += x[r * shape.in + i] * w[o * shape.in + i];
        y[r * shape.out + o] = sum;
      }
    }
    return y;
  }
  Doubles forward(const Doubles& x, const Doubles& w, const Doubles& b) const {
    Doubles y = pre(x, w, b);
    for (double& v : y) v = activate(activation, v);
    return y;
  }
  // {dx, dw, db}
  std::vector<Doubles> backward(const Doubles& x, const Doubles& w, const Doubles& b,
                                const Doubles& dy) const {
    Doubles dx(x.size()), dw(w.size()), db(b.size());
    const Doubles kept = pre(x, w, b);
    for (size_t r = 0; r < shape.rows; ++r) {
      for (size_t o = 0; o < shape.out; ++o) {
        const double d = dy[r * shape.out + o] * slope(activation, kept[r * shape.out + o]);
        db[o] += d;
        for (size_t i = 0; i < shape.in; ++i) {
          dx[r * shape.in + i] += d * w[o * shape.in + i];
          dw[o * shape.in + i] += d * x[r * shape.in + i];
        }
      }
    }
    return {dx, dw, db};
  }
};

Node node_of(OpHarness& h, Activation activation, const Shape& shape) {
  Node node = {
      .op = linear({activation}),
      .inputs = {h.random(int64_t(shape.rows), int64_t(shape.in)),
                 h.random(int64_t(shape.out), int64_t(shape.in), 1.0 / std::sqrt(double(shape.in))),
                 h.random(1, int64_t(shape.out))},
      .outputs = {h.value(int64_t(shape.rows), int64_t(shape.out))}};
  if (keeps_pre_activation(activation)) {
    node.outputs.push_back(h.value(int64_t(shape.rows), int64_t(shape.out)));
  }
  return node;
}

void check_case(Activation activation, const Shape& shape, bool accumulate, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "activation " << int(activation) << ", rows " << shape.rows
                                  << ", in " << shape.in << ", out " << shape.out);
  const Batch batch;
  OpHarness h(batch, seed);
  const Node node = node_of(h, activation, shape);
  const Reference reference = {shape, activation};
  const Doubles x = h.doubles(node.inputs[0]), w = h.doubles(node.inputs[1]),
                b = h.doubles(node.inputs[2]);
  h.forward(node);
  // A sum of products rounds like eps times the norms' product (its partial sums stay below that);
  // 8 leaves room for the blocks' order. Activations have slopes below 1.13 and add at most 4e-7 of
  // their own.
  const double pre_error =
      8.0 * kEps * (largest_row_norm(x, shape.in) * largest_row_norm(w, shape.in) + largest(b));
  const Doubles y = reference.forward(x, w, b);
  EXPECT_TRUE(
      close("y", h.doubles(node.outputs[0]), y, 1.13 * pre_error + 4e-7 + kEps * largest(y), seed));
  if (keeps_pre_activation(activation)) {
    EXPECT_TRUE(close("pre", h.doubles(node.outputs[1]), reference.pre(x, w, b), pre_error, seed));
  }

  const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
  h.want(node.inputs[0], accumulate);
  h.want(node.inputs[1], true);
  h.want(node.inputs[2], true);
  h.backward(node);
  const auto expected = reference.backward(x, w, b, dy);
  // The slopes change by less than 1 per unit of `pre` and are off by some eps; the gradients are
  // again sums of products. What accumulation adds to the rounding is eps times the values before,
  // which are below 8.
  const double relative = pre_error + 16.0 * kEps, before = 16.0 * kEps;
  const double dx_error =
      relative * 1.13 * largest_row_norm(dy, shape.out) * largest_column_norm(w, shape.in);
  const double dw_error =
      relative * 1.13 * largest_column_norm(dy, shape.out) * largest_column_norm(x, shape.in);
  const double db_error =
      relative * 1.13 * largest_column_norm(dy, shape.out) * std::sqrt(double(shape.rows));
  EXPECT_TRUE(close("dx", h.gained(node.inputs[0]), expected[0], dx_error + before, seed));
  EXPECT_TRUE(close("dw", h.gained(node.inputs[1]), expected[1], dw_error + before, seed));
  EXPECT_TRUE(close("db", h.gained(node.inputs[2]), expected[2], db_error + before, seed));
}

TEST(Linear, MatchesReference) {
  on_each_target([] {
    uint64_t seed = 1;
    for (Activation activation : kAllActivations) {
      for (const Shape& shape :
           {Shape{1, 1, 1}, {3, 3, 3}, {7, 5, 9}, {13, 17, 31}, {33, 67, 65}, {130, 32, 264}}) {
        check_case(activation, shape, seed % 2 == 0, seed);
        ++seed;
      }
    }
  });
}

// Adapters are further columns of x and w: [x | scale * u ...] and [w | up in its rows ...].
TEST(Linear, AdaptersMatchReference) {
  constexpr size_t kRank = 3;
  constexpr float kScale = 0.75f;
  struct Place {
    size_t first, count;
  };
  on_each_target([&] {
    uint64_t seed = 50;
    for (const Activation activation : {Activation::kNone, Activation::kGelu}) {
      const Shape shape = {17, 9, 26};
      const std::vector<Place> places = {{0, 9}, {13, 13}};
      const Batch batch;
      OpHarness h(batch, ++seed);
      Node node = node_of(h, activation, shape);
      Adapters adapters{.first_columns = {}, .scale = kScale};
      for (const Place& place : places) {
        adapters.first_columns.push_back(int64_t(place.first));
        node.inputs.push_back(h.random(int64_t(shape.rows), kRank));
        node.inputs.push_back(h.random(int64_t(place.count), kRank));
      }
      node.op = linear({.activation = activation, .adapters = adapters});
      const Shape wide = {shape.rows, shape.in + kRank * places.size(), shape.out};
      const Doubles x = h.doubles(node.inputs[0]), w = h.doubles(node.inputs[1]),
                    b = h.doubles(node.inputs[2]);
      Doubles wide_x(wide.rows * wide.in), wide_w(wide.out * wide.in);
      for (size_t r = 0; r < shape.rows; ++r) {
        std::copy_n(&x[r * shape.in], shape.in, &wide_x[r * wide.in]);
      }
      for (size_t o = 0; o < shape.out; ++o) {
        std::copy_n(&w[o * shape.in], shape.in, &wide_w[o * wide.in]);
      }
      for (size_t a = 0; a < places.size(); ++a) {
        const Doubles u = h.doubles(node.inputs[3 + 2 * a]), up = h.doubles(node.inputs[4 + 2 * a]);
        const size_t column = shape.in + a * kRank;
        for (size_t i = 0; i < u.size(); ++i) {
          wide_x[i / kRank * wide.in + column + i % kRank] = kScale * u[i];
        }
        for (size_t i = 0; i < up.size(); ++i) {
          wide_w[(places[a].first + i / kRank) * wide.in + column + i % kRank] = up[i];
        }
      }
      const Reference reference = {wide, activation};
      h.forward(node);
      const double bound =
          16.0 * kEps *
              (largest_row_norm(wide_x, wide.in) * largest_row_norm(wide_w, wide.in) + largest(b)) +
          4e-7;
      EXPECT_TRUE(close("y", h.doubles(node.outputs[0]), reference.forward(wide_x, wide_w, b),
                        1.13 * bound, seed));
      const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        h.want(node.inputs[i], i == 1 || i == 2 || (i > 3 && i % 2 == 0));
      }
      h.backward(node);
      const auto expected = reference.backward(wide_x, wide_w, b, dy);
      const double error =
          (bound + 32.0 * kEps) * 1.13 * largest_row_norm(dy, shape.out) *
              std::max(largest_column_norm(wide_w, wide.in), largest_column_norm(wide_x, wide.in)) +
          16.0 * kEps;
      for (size_t a = 0; a < places.size(); ++a) {
        const size_t column = shape.in + a * kRank;
        Doubles du(shape.rows * kRank), dup(places[a].count * kRank);
        for (size_t i = 0; i < du.size(); ++i) {
          du[i] = kScale * expected[0][i / kRank * wide.in + column + i % kRank];
        }
        for (size_t i = 0; i < dup.size(); ++i) {
          dup[i] = expected[1][(places[a].first + i / kRank) * wide.in + column + i % kRank];
        }
        EXPECT_TRUE(close("du", h.gained(node.inputs[3 + 2 * a]), du, error, seed));
        EXPECT_TRUE(close("dup", h.gained(node.inputs[4 + 2 * a]), dup, 4 * error, seed));
      }
    }
  });
}

TEST(Linear, ReferenceGradientIsADerivative) {
  for (Activation activation : kAllActivations) {
    const Reference reference = {{5, 4, 3}, activation};
    const Batch batch;
    OpHarness h(batch, 3);
    const Doubles x = h.doubles(h.random(5, 4)), w = h.doubles(h.random(3, 4)),
                  b = h.doubles(h.random(1, 3));
    const Doubles dy = h.doubles(h.random(5, 3));
    const auto f = [&](const std::vector<Doubles>& in) {
      return dot(reference.forward(in[0], in[1], in[2]), dy);
    };
    EXPECT_TRUE(is_derivative(f, {x, w, b}, reference.backward(x, w, b, dy), 5)) << int(activation);
  }
}

// w is the sweep, x is one: out has many columns and each is one argument of the activation.
TEST(Linear, ActivationsAreAccurateOverADenseSweep) {
  on_each_target([] {
    constexpr int64_t kPoints = 100003;
    std::vector<float> sweep(kPoints);
    for (int64_t i = 0; i < kPoints; ++i) {
      sweep[size_t(i)] = float(-14.0 + 28.0 * double(i) / double(kPoints - 1));
    }
    for (Activation activation : kAllActivations) {
      const Batch batch;
      OpHarness h(batch, 1);
      Node node = {linear({activation}),
                   {h.filled(1, 1, {1.0f}), h.filled(kPoints, 1, sweep), kNoValue},
                   {h.value(1, kPoints)}};
      if (keeps_pre_activation(activation)) node.outputs.push_back(h.value(1, kPoints));
      h.forward(node);
      h.want(node.inputs[1], true);
      const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
      h.backward(node);
      const Doubles y = h.doubles(node.outputs[0]), dw = h.doubles(h.gradient(node.outputs[0]));
      double worst = 0.0, worst_slope = 0.0;
      for (size_t i = 0; i < sweep.size(); ++i) {
        // One ulp of 4 is 4.8e-7; beyond, the results' own rounding grows.
        worst = std::max(worst, std::abs(y[i] - activate(activation, sweep[i])) /
                                    std::max(1.0, std::abs(y[i]) / 4.0));
        worst_slope = std::max(worst_slope, std::abs(dw[i] / dy[i] - slope(activation, sweep[i])));
      }
      EXPECT_LT(worst, 5e-7) << int(activation);
      EXPECT_LT(worst_slope, 8e-7) << int(activation);
    }
  });
}

// Backward then multiplies: the same bits as with the argument kept.
// A group holds each of its columns once, and two neighbours side by side.
TEST(SlopeBytes, AreAnOrderOfColumns) {
  std::set<int64_t> columns;
  for (int64_t byte = 0; byte < 3 * SlopeBytes::kGroup; ++byte) {
    const int64_t column = SlopeBytes::column(byte);
    EXPECT_EQ(column / SlopeBytes::kGroup, byte / SlopeBytes::kGroup);
    EXPECT_EQ(column, SlopeBytes::column(byte / 2 * 2) + byte % 2);
    columns.insert(column);
  }
  EXPECT_EQ(columns.size(), size_t(3 * SlopeBytes::kGroup));
}

TEST(Linear, KeptSlopesChangeNoBits) {
  on_each_target([] {
    const Batch batch;
    for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh}) {
      for (const Shape& shape : {Shape{1, 1, 1}, {7, 5, 9}, {33, 67, 65}}) {
        SCOPED_TRACE(testing::Message()
                     << "activation " << int(activation) << ", out " << shape.out);
        OpHarness by_argument(batch, 9), by_slope(batch, 9);
        const Node node = node_of(by_argument, activation, shape);
        Node other = node_of(by_slope, activation, shape);
        other.op = linear({.activation = activation, .keeps_slope = true});
        EXPECT_FALSE(other.op->remake(other, 0).has_value());
        for (const auto& [h, each] : {std::pair{&by_argument, node}, {&by_slope, other}}) {
          h->forward(each);
          h->upstream(each.outputs[0]);
          for (const ValueId in : each.inputs) h->want(in, true);
          h->backward(each);
        }
        EXPECT_EQ(by_slope.floats(node.outputs[0]), by_argument.floats(node.outputs[0]));
        Doubles slopes;
        for (const double x : by_argument.doubles(node.outputs[1])) {
          slopes.push_back(slope(activation, x));
        }
        EXPECT_TRUE(close("slope", by_slope.doubles(node.outputs[1]), slopes, 8e-7, 9));
        for (const ValueId in : node.inputs) {
          EXPECT_EQ(by_slope.floats(by_slope.gradient(in)),
                    by_argument.floats(by_argument.gradient(in)));
        }
      }
    }
  });
}

// With the activation of the layer below, the same bits as one operator after the other.
TEST(Linear, InputGradientGoesOnThroughTheEpilogueBelow) {
  const Batch batch;
  for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    for (const bool bias : {true, false}) {
      const Activation activation = bias ? Activation::kGelu : Activation::kGeluTanh;
      OpHarness h(batch, 6);
      const ValueId dy = h.random(13, 9),
                    w = layout == WeightLayout::kOutIn ? h.random(9, 21) : h.random(21, 9);
      const ValueId pre = h.random(13, 21), apart = h.value(13, 21), together = h.value(13, 21);
      const ValueId db = bias ? h.random(1, 21) : kNoValue,
                    same_db = bias ? h.filled(1, 21, h.floats(db)) : kNoValue;
      h.emit(std::make_shared<LinearInputGradient>(false, layout), {dy, w}, {apart});
      h.emit(std::make_shared<LinearEpilogueGradient>(activation), {apart, pre}, {apart, db});
      h.emit(std::make_shared<LinearInputGradient>(false, layout, activation), {dy, w, pre},
             {together, same_db});
      EXPECT_EQ(h.floats(together), h.floats(apart));
      if (bias) {
        EXPECT_EQ(h.floats(same_db), h.floats(db));
      }
    }
  }
}

TEST(Linear, WritesOnlyTheGradientsThatAreWanted) {
  const Batch batch;
  OpHarness h(batch, 9);
  const Node node = node_of(h, Activation::kGelu, {9, 5, 7});
  h.forward(node);
  const std::vector<float> w = h.floats(node.inputs[1]);
  h.upstream(node.outputs[0]);
  h.backward(node);  // nothing wanted: nothing emitted
  h.want(node.inputs[2], true);
  h.backward(node);
  EXPECT_EQ(h.floats(node.inputs[1]), w);
  EXPECT_GT(largest(h.gained(node.inputs[2])), 0.0);
}

// With one input column the product is exact for any blocking, so what is left is ours.
TEST(Linear, EpilogueDoesNotDependOnThreads) {
  expect_same_on_two_threads([] {
    const Batch batch;
    OpHarness h(batch, 4);
    const Node node = node_of(h, Activation::kGelu, {70, 1, 333});
    h.forward(node);
    h.upstream(node.outputs[0]);
    h.want(node.inputs[2], true);
    h.backward(node);
    return std::vector{h.floats(node.outputs[0]), h.floats(node.outputs[1]),
                       h.floats(h.gradient(node.outputs[0])), h.floats(h.gradient(node.inputs[2]))};
  });
}

}  // namespace
}  // namespace snug
