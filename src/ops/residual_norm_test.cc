#include "ops/residual_norm.h"

#include "ops/dropout_mask.h"
#include "ops/op_test_util.h"

namespace snug {
namespace {

// The plain loops.
struct Reference {
  const Batch& batch;
  size_t hidden;
  double eps;
  DropoutMask mask;
  double largest_rstd = 0.0;

  double factor(size_t token, size_t c) const {
    return mask.on() ? mask_factor(mask, token_mask_row(batch, int64_t(token)), uint32_t(c)) : 1.0;
  }
  Doubles sum(const Doubles& x, const Doubles& residual) const {
    Doubles s = residual;
    for (size_t i = 0; i < s.size(); ++i) s[i] += x[i] * factor(i / hidden, i % hidden);
    return s;
  }
  // xhat, and 1/deviation of the row.
  Doubles normalized(const double* s, double& rstd) const {
    double mean = 0.0, variance = 0.0;
    for (size_t c = 0; c < hidden; ++c) mean += s[c] / double(hidden);
    for (size_t c = 0; c < hidden; ++c) variance += (s[c] - mean) * (s[c] - mean) / double(hidden);
    rstd = 1.0 / std::sqrt(variance + eps);
    Doubles xhat(hidden);
    for (size_t c = 0; c < hidden; ++c) xhat[c] = (s[c] - mean) * rstd;
    return xhat;
  }
  Doubles forward(const Doubles& s, const Doubles& gamma, const Doubles& beta) {
    Doubles y(s.size());
    for (size_t row = 0; row < s.size(); row += hidden) {
      double rstd;
      const Doubles xhat = normalized(&s[row], rstd);
      largest_rstd = std::max(largest_rstd, rstd);
      for (size_t c = 0; c < hidden; ++c) y[row + c] = xhat[c] * gamma[c] + beta[c];
    }
    return y;
  }
  // {gradient of the sum, dgamma, dbeta}
  std::vector<Doubles> backward(const Doubles& s, const Doubles& gamma, const Doubles& dy) const {
    Doubles ds(s.size()), dgamma(hidden), dbeta(hidden);
    for (size_t row = 0; row < s.size(); row += hidden) {
      double rstd, mean = 0.0, mean_x = 0.0;
      const Doubles xhat = normalized(&s[row], rstd);
      for (size_t c = 0; c < hidden; ++c) {
        const double g = dy[row + c] * gamma[c];
        mean += g / double(hidden);
        mean_x += g * xhat[c] / double(hidden);
        dgamma[c] += dy[row + c] * xhat[c];
        dbeta[c] += dy[row + c];
      }
      for (size_t c = 0; c < hidden; ++c) {
        ds[row + c] = rstd * (dy[row + c] * gamma[c] - mean - xhat[c] * mean_x);
      }
    }
    return {ds, dgamma, dbeta};
  }
};

struct Case {
  int64_t hidden = 1;
  float eps = 1e-5f, dropout = 0.0f;
  bool add_x = false, add_residual = false, sum_is_carried_on = false;
  uint64_t seed = 1;
};

Node node_of(OpHarness& h, const Case& c, int64_t count, Rows rows = Rows::kTokens) {
  return {residual_norm(
              {.hidden = c.hidden, .eps = c.eps, .dropout = c.dropout, .site = 4, .rows = rows}),
          {h.random(count, c.hidden), h.random(count, c.hidden, 1.0, 0.5),
           h.random(1, c.hidden, 0.3, 1.0), h.random(1, c.hidden)},
          {h.value(count, c.hidden), h.value(count, c.hidden), h.value(count, 2)}};
}

void check_case(const Case& c, const std::vector<int>& lengths) {
  SCOPED_TRACE(testing::Message() << "hidden " << c.hidden << ", eps " << c.eps << ", dropout "
                                  << c.dropout);
  const PackedBatch packed(lengths, c.seed);
  OpHarness h(packed.batch, c.seed);
  h.step = {.seed = 99, .training = true};
  const Node node = node_of(h, c, packed.batch.dims.tokens);
  Reference reference = {packed.batch, size_t(c.hidden), c.eps, dropout_mask(c.dropout, 4, h.step)};
  const Doubles x = h.doubles(node.inputs[0]), residual = h.doubles(node.inputs[1]);
  const Doubles gamma = h.doubles(node.inputs[2]), beta = h.doubles(node.inputs[3]);
  h.forward(node);
  const Doubles sum = reference.sum(x, residual), y = reference.forward(sum, gamma, beta);
  // The sum is rounded once or twice; xhat is then off by some eps of the row's largest element
  // over its deviation (for rows of few, nearly equal elements 1/deviation is large).
  const double sum_error = 2.0 * kEps * largest(sum);
  const double xhat_error = 8.0 * sum_error * reference.largest_rstd;
  EXPECT_TRUE(close("sum", h.doubles(node.outputs[1]), sum, sum_error, c.seed));
  EXPECT_TRUE(
      close("y", h.doubles(node.outputs[0]), y,
            xhat_error * largest(gamma) * largest(y) + 4.0 * kEps * (largest(y) + largest(beta)),
            c.seed));

  const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
  const Doubles dsum =
      c.sum_is_carried_on ? h.doubles(h.upstream(node.outputs[1])) : Doubles(sum.size());
  h.want(node.inputs[0], c.add_x);
  h.want(node.inputs[1], c.add_residual);
  h.want(node.inputs[2], true);
  h.want(node.inputs[3], true);
  h.backward(node);
  auto expected = reference.backward(sum, gamma, dy);
  for (size_t i = 0; i < sum.size(); ++i) expected[0][i] += dsum[i];
  Doubles dx = expected[0];
  for (size_t i = 0; i < dx.size(); ++i) {
    dx[i] *= reference.factor(i / reference.hidden, i % reference.hidden);
  }
  // Three terms of size rstd |dy gamma|, each off by some eps and by what xhat is off (squared
  // norms of xhat: hidden, means divide by it again); `before` is the rounding of what was there.
  const double before = 16.0 * kEps, g = largest(dy) * largest(gamma);
  const double relative = 16.0 * kEps + 4.0 * xhat_error;
  const double ds_error =
      relative * reference.largest_rstd * g * (1.0 + largest(y)) + 4.0 * kEps * largest(dsum);
  EXPECT_TRUE(close("dresidual", h.gained(node.inputs[1]), expected[0], ds_error + before, c.seed));
  EXPECT_TRUE(
      close("dx", h.gained(node.inputs[0]), dx, reference.mask.scale * ds_error + before, c.seed));
  const double column =
      largest_column_norm(dy, size_t(c.hidden)) * std::sqrt(double(packed.batch.dims.tokens));
  EXPECT_TRUE(close("dgamma", h.gained(node.inputs[2]), expected[1],
                    (relative * 4.0) * column + before, c.seed));
  EXPECT_TRUE(
      close("dbeta", h.gained(node.inputs[3]), expected[2], 4.0 * kEps * column + before, c.seed));
}

const std::vector<int> kLengths = {1, 3, 17, 40, 70, 2};

TEST(ResidualNorm, MatchesReference) {
  on_each_target([] {
    uint64_t seed = 1;
    for (int64_t hidden : {1, 3, 7, 8, 9, 31, 64, 65, 257, 768}) {
      for (float dropout : {0.0f, 0.1f}) {
        check_case({hidden, seed % 2 ? 1e-5f : 1e-12f, dropout, seed % 3 == 0, seed % 3 != 1,
                    seed % 4 > 1, seed},
                   kLengths);
        ++seed;
      }
    }
  });
}

TEST(ResidualNorm, MatchesReferenceForALongSequence) {
  check_case({96, 1e-5f, 0.1f, false, false, false, 5}, {300, 1});
}

TEST(ResidualNorm, ReferenceGradientIsADerivative) {
  const PackedBatch packed({3, 2}, 5);
  Reference reference = {packed.batch, 7, 1e-5,
                         dropout_mask(0.3f, 9, {.seed = 8, .training = true})};
  OpHarness h(packed.batch, 6);
  const Doubles x = h.doubles(h.random(5, 7)), residual = h.doubles(h.random(5, 7));
  const Doubles gamma = h.doubles(h.random(1, 7)), beta = h.doubles(h.random(1, 7)),
                dy = h.doubles(h.random(5, 7));
  const auto f = [&](const std::vector<Doubles>& in) {
    return dot(reference.forward(reference.sum(in[0], in[1]), in[2], in[3]), dy);
  };
  const auto d = reference.backward(reference.sum(x, residual), gamma, dy);
  Doubles dx = d[0];
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= reference.factor(i / 7, i % 7);
  EXPECT_TRUE(is_derivative(f, {x, residual, gamma, beta}, {dx, d[0], d[1], d[2]}, 7));
}

TEST(ResidualNorm, DoesNotDependOnThreads) {
  expect_same_on_two_threads([] {
    const PackedBatch packed(kLengths, 3);
    OpHarness h(packed.batch, 4);
    h.step = {.seed = 5, .training = true};
    const Node node =
        node_of(h, {.hidden = 333, .eps = 1e-5f, .dropout = 0.1f}, packed.batch.dims.tokens);
    h.forward(node);
    h.upstream(node.outputs[0]);
    for (ValueId input : node.inputs) h.want(input, true);
    h.backward(node);
    std::vector<std::vector<float>> results;
    for (ValueId v : node.outputs) results.push_back(h.floats(v));
    for (ValueId v : node.inputs) results.push_back(h.floats(h.gradient(v)));
    return results;
  });
}

// One row for each sequence is dropped as the first token of a sequence is.
TEST(ResidualNorm, TakesOneRowForEachSequence) {
  const PackedBatch single({1, 1, 1}, 3), packed({4, 1, 9}, 3);
  std::vector<std::vector<float>> results;
  for (const Rows rows : {Rows::kTokens, Rows::kSequences}) {
    Batch batch = rows == Rows::kTokens ? single.batch : packed.batch;
    batch.samples = packed.batch.samples;
    OpHarness h(batch, 4);
    h.step = {.seed = 5, .training = true};
    const Node node = node_of(h, {.hidden = 37, .dropout = 0.3f}, 3, rows);
    h.forward(node);
    h.upstream(node.outputs[0]);
    for (ValueId input : node.inputs) h.want(input, true);
    h.backward(node);
    std::vector<float>& all = results.emplace_back();
    for (ValueId v : {node.outputs[0], h.gradient(node.inputs[0]), h.gradient(node.inputs[1]),
                      h.gradient(node.inputs[2])}) {
      const std::vector<float> values = h.floats(v);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(ResidualNorm, NeedsNeitherSumNorStatsWithoutGradient) {
  const PackedBatch packed({4}, 3);
  OpHarness h(packed.batch, 4);
  Node node = node_of(h, {.hidden = 19, .eps = 1e-5f}, 4);
  h.forward(node);
  const auto y = h.floats(node.outputs[0]);
  node.outputs = {h.value(4, 19), kNoValue, kNoValue};
  h.forward(node);
  EXPECT_EQ(h.floats(node.outputs[0]), y);
}

TEST(LayerNorm, MatchesReference) {
  for (bool accumulate : {false, true}) {
    const PackedBatch packed({5, 9}, 3);
    OpHarness h(packed.batch, 4);
    const Node node = {layer_norm({.hidden = 37, .eps = 1e-5f}),
                       {h.random(14, 37), h.random(1, 37), h.random(1, 37)},
                       {h.value(14, 37), h.value(14, 2)}};
    Reference reference = {packed.batch, 37, 1e-5, {}};
    const Doubles x = h.doubles(node.inputs[0]), gamma = h.doubles(node.inputs[1]),
                  beta = h.doubles(node.inputs[2]);
    h.forward(node);
    const Doubles y = reference.forward(x, gamma, beta);
    // As for residual_norm.
    const double relative = 32.0 * kEps * largest(x) * reference.largest_rstd;
    EXPECT_TRUE(close("y", h.doubles(node.outputs[0]), y, relative * (1.0 + largest(y)), 4));
    const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
    h.want(node.inputs[0], accumulate);
    h.want(node.inputs[1], true);
    h.want(node.inputs[2], true);
    h.backward(node);
    const auto expected = reference.backward(x, gamma, dy);
    const double scale = largest(dy) * (1.0 + largest(gamma)) * 4.0;
    for (size_t n = 0; n < 3; ++n) {
      EXPECT_TRUE(close("gradient", h.gained(node.inputs[n]), expected[n],
                        relative * scale * (n ? 4.0 : 1.0), 4))
          << n;
    }
  }
}

}  // namespace
}  // namespace snug
