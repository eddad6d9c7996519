#include "ops/attention.h"

#include "ops/dropout_mask.h"
#include "ops/op_test_util.h"

namespace snug {
namespace {

// The plain loops, with whole matrices of probabilities.
struct Reference {
  const Batch& batch;
  AttentionSpec spec;
  DropoutMask mask;
  double largest_column = 0.0;  // of sums of probabilities over the queries of a key

  size_t hidden() const { return size_t(spec.heads * spec.head_dim); }
  // Calls f(tokens of the sequence, sequence, head, column offset).
  template <class F>
  void each(F f) const {
    for (int64_t s = 0; s < batch.dims.sequences; ++s) {
      for (size_t head = 0; head < size_t(spec.heads); ++head) {
        f(size_t(batch.starts[s]), size_t(batch.starts[s + 1] - batch.starts[s]), s, head);
      }
    }
  }
  const double* row(const Doubles& qkv, size_t token, size_t part, size_t head) const {
    return &qkv[token * 3 * hidden() + part * hidden() + head * size_t(spec.head_dim)];
  }
  double inner(const double* x, const double* y) const {
    double sum = 0.0;
    for (int64_t i = 0; i < spec.head_dim; ++i) sum += x[i] * y[i];
    return sum;
  }
  double factor(int64_t s, size_t query, size_t key, size_t head) const {
    return mask_factor(mask, {batch.samples[s], uint32_t(query), uint32_t(head)}, uint32_t(key));
  }
  // Probabilities of one query before dropout, and the log-sum-exp.
  Doubles probabilities(const Doubles& qkv, size_t start, size_t length, size_t query, size_t head,
                        double& lse) const {
    const size_t keys = spec.causal ? query + 1 : length;
    Doubles p(keys);
    double max = -1e300, sum = 0.0;
    for (size_t k = 0; k < keys; ++k) {
      p[k] = inner(row(qkv, start + query, 0, head), row(qkv, start + k, 1, head)) /
             std::sqrt(double(spec.head_dim));
      max = std::max(max, p[k]);
    }
    for (double& v : p) sum += v = std::exp(v - max);
    for (double& v : p) v /= sum;
    lse = max + std::log(sum);
    return p;
  }

  Doubles forward(const Doubles& qkv, Doubles& lse) const {
    const size_t tokens = size_t(batch.dims.tokens);
    Doubles o(tokens * hidden());
    lse.assign(tokens * size_t(spec.heads), 0.0);
    each([&](size_t start, size_t length, int64_t s, size_t head) {
      for (size_t q = 0; q < length; ++q) {
        const Doubles p = probabilities(qkv, start, length, q, head,
                                        lse[(start + q) * size_t(spec.heads) + head]);
        double* const out = &o[(start + q) * hidden() + head * size_t(spec.head_dim)];
        for (size_t k = 0; k < p.size(); ++k) {
          for (int64_t i = 0; i < spec.head_dim; ++i) {
            out[i] += p[k] * factor(s, q, k, head) * row(qkv, start + k, 2, head)[i];
          }
        }
      }
    });
    return o;
  }

  Doubles backward(const Doubles& qkv, const Doubles& d_o) {
    Doubles dqkv(qkv.size());
    each([&](size_t start, size_t length, int64_t s, size_t head) {
      Doubles columns(length);
      for (size_t q = 0; q < length; ++q) {
        double lse;
        const Doubles p = probabilities(qkv, start, length, q, head, lse);
        const double* const dout = &d_o[(start + q) * hidden() + head * size_t(spec.head_dim)];
        Doubles dp(p.size());
        double delta = 0.0;
        for (size_t k = 0; k < p.size(); ++k) {
          dp[k] = factor(s, q, k, head) * inner(dout, row(qkv, start + k, 2, head));
          delta += p[k] * dp[k];
          columns[k] += p[k];
        }
        for (size_t k = 0; k < p.size(); ++k) {
          const double ds = p[k] * (dp[k] - delta) / std::sqrt(double(spec.head_dim));
          double* const dq = const_cast<double*>(row(dqkv, start + q, 0, head));
          double* const dk = const_cast<double*>(row(dqkv, start + k, 1, head));
          double* const dv = const_cast<double*>(row(dqkv, start + k, 2, head));
          for (int64_t i = 0; i < spec.head_dim; ++i) {
            dq[i] += ds * row(qkv, start + k, 1, head)[i];
            dk[i] += ds * row(qkv, start + q, 0, head)[i];
            dv[i] += p[k] * factor(s, q, k, head) * dout[i];
          }
        }
      }
      largest_column = std::max(largest_column, largest(columns));
    });
    return dqkv;
  }
};

struct Case {
  AttentionSpec spec;
  std::vector<int> lengths;
  uint64_t seed;
};

Node node_of(OpHarness& h, const AttentionSpec& spec, int64_t tokens) {
  const int64_t hidden = spec.heads * spec.head_dim;
  return {attention(spec),
          {h.random(tokens, 3 * hidden)},
          {h.value(tokens, hidden), h.value(tokens, spec.heads)}};
}

void check_case(const Case& c) {
  SCOPED_TRACE(testing::Message() << "heads " << c.spec.heads << ", head_dim " << c.spec.head_dim
                                  << ", dropout " << c.spec.dropout << ", causal "
                                  << c.spec.causal);
  const PackedBatch packed(c.lengths, c.seed);
  OpHarness h(packed.batch, c.seed);
  h.step = {.seed = 1234567890123, .training = true};
  const Node node = node_of(h, c.spec, packed.batch.dims.tokens);
  Reference reference = {packed.batch, c.spec, dropout_mask(c.spec.dropout, c.spec.site, h.step)};
  h.forward(node);
  const Doubles qkv = h.doubles(node.inputs[0]);
  Doubles lse;
  const Doubles o = reference.forward(qkv, lse);

  // A score is off by `score` (sum of products, times 1/sqrt(d)), a probability by twice that,
  // relatively, and some eps; an output is a mean of values.
  const double dim = double(c.spec.head_dim), keep = reference.mask.scale;
  const double head_norm = largest_row_norm(qkv, size_t(c.spec.head_dim));  // of any q, k or v row
  const double score = 4.0 * kEps * head_norm * head_norm / std::sqrt(dim);
  const double relative = 2.0 * score + kEps * (16.0 + largest(lse));
  EXPECT_TRUE(
      close("lse", h.doubles(node.outputs[1]), lse, score + kEps * (4.0 + largest(lse)), c.seed));
  EXPECT_TRUE(close("o", h.doubles(node.outputs[0]), o, relative * keep * largest(qkv), c.seed));

  const Doubles d_o = h.doubles(h.upstream(node.outputs[0]));
  h.want(node.inputs[0], false);
  h.backward(node);
  const Doubles dqkv = reference.backward(qkv, d_o);
  // dP and delta are below B = keep |do| |v|, off by a few `relative` of it; dq sums them over
  // probabilities that add up to 1, dk and dv over a column of probabilities.
  const double bound =
      keep * largest_row_norm(d_o, size_t(c.spec.head_dim)) * head_norm / std::sqrt(dim);
  const double column = std::max(1.0, reference.largest_column);
  const double tolerance =
      column * (4.0 * relative * bound * largest(qkv) + 2.0 * relative * keep * largest(d_o));
  EXPECT_TRUE(close("dqkv", h.gained(node.inputs[0]), dqkv, tolerance, c.seed));
}

TEST(Attention, MatchesReferenceForManyShapes) {
  uint64_t seed = 1;
  for (int64_t dim : {1, 7, 16, 32, 33, 64, 96, 128}) {
    for (float dropout : {0.0f, 0.1f}) {
      const AttentionSpec spec = {
          .heads = 2, .head_dim = dim, .dropout = dropout, .site = 5, .causal = seed % 3 == 0};
      check_case({spec, {1, 2, 3, 7, 8, 9, 17, 31, 47, 48, 49, 70}, seed});
      ++seed;
    }
  }
}

TEST(Attention, MatchesReferenceOnEveryTarget) {
  on_each_target([] {
    for (bool causal : {false, true}) {
      check_case({{.heads = 3, .head_dim = 33, .dropout = 0.2f, .site = 1, .causal = causal},
                  {5, 1, 23, 64, 50},
                  11});
    }
  });
}

TEST(Attention, MatchesReferenceForALongSequence) {
  for (bool causal : {false, true}) {
    check_case({{.heads = 2, .head_dim = 32, .dropout = 0.1f, .site = 2, .causal = causal},
                {3, 300, 11},
                21});
  }
}

TEST(Attention, ReferenceGradientIsADerivative) {
  for (bool causal : {false, true}) {
    const PackedBatch packed({3, 1, 6}, 5);
    const AttentionSpec spec = {
        .heads = 2, .head_dim = 3, .dropout = 0.3f, .site = 9, .causal = causal};
    Reference reference = {packed.batch, spec,
                           dropout_mask(0.3f, 9, {.seed = 8, .training = true})};
    OpHarness h(packed.batch, 6);
    const Doubles qkv = h.doubles(h.random(10, 18)), d_o = h.doubles(h.random(10, 6));
    const auto f = [&](const std::vector<Doubles>& in) {
      Doubles lse;
      return dot(reference.forward(in[0], lse), d_o);
    };
    EXPECT_TRUE(is_derivative(f, {qkv}, {reference.backward(qkv, d_o)}, 7));
  }
}

TEST(Attention, DoesNotDependOnThreads) {
  expect_same_on_two_threads([] {
    const PackedBatch packed({7, 300, 33, 1, 64}, 3);
    OpHarness h(packed.batch, 4);
    h.step = {.seed = 5, .training = true};
    const Node node = node_of(h, {.heads = 3, .head_dim = 24, .dropout = 0.1f, .site = 3},
                              packed.batch.dims.tokens);
    h.forward(node);
    h.upstream(node.outputs[0]);
    h.want(node.inputs[0], false);
    h.backward(node);
    return std::vector{h.floats(node.outputs[0]), h.floats(node.outputs[1]),
                       h.floats(h.gradient(node.inputs[0]))};
  });
}

// A sequence's result has the same bits alone and between others.
TEST(Attention, DoesNotDependOnPacking) {
  const AttentionSpec spec = {.heads = 2, .head_dim = 20, .dropout = 0.1f, .site = 3};
  PackedBatch together({5, 37, 64}, 3), alone({37}, 4);
  alone.samples[0] = together.samples[1];
  const auto run = [&](PackedBatch& packed, const std::vector<float>& contents) {
    OpHarness h(packed.batch, 9);
    h.step = {.seed = 5, .training = true};
    const Node node = node_of(h, spec, packed.batch.dims.tokens);
    std::copy(contents.begin(), contents.end(), h.tensor(node.inputs[0]).f32());
    h.forward(node);
    return h.floats(node.outputs[0]);
  };
  OpHarness source(together.batch, 8);
  const std::vector<float> all = source.floats(source.random(106, 120));
  const auto whole = run(together, all),
             part = run(alone, {all.begin() + 5 * 120, all.begin() + 42 * 120});
  EXPECT_EQ(std::vector(whole.begin() + 5 * 40, whole.begin() + 42 * 40), part);
}

TEST(Attention, WithoutTrainingThereIsNoDropout) {
  const PackedBatch packed({9, 4}, 3);
  const auto run = [&](float dropout) {
    OpHarness h(packed.batch, 4);
    const Node node = node_of(h, {.heads = 2, .head_dim = 8, .dropout = dropout}, 13);
    h.forward(node);
    return h.floats(node.outputs[0]);
  };
  EXPECT_EQ(run(0.5f), run(0.0f));
}

TEST(Attention, WorkspaceIsLinearInTheLongestSequence) {
  const OpPtr op = attention({.heads = 12, .head_dim = 64});
  const size_t one = op->workspace_bytes({.dims = {.tokens = 1024, .sequences = 1, .longest = 1024},
                                          .device = {.threads = 2},
                                          .in = {},
                                          .out = {}});
  const size_t two = op->workspace_bytes({.dims = {.tokens = 2048, .sequences = 1, .longest = 2048},
                                          .device = {.threads = 2},
                                          .in = {},
                                          .out = {}});
  EXPECT_LE(two, 2 * one);
}

TEST(Attention, NanComesThrough) {
  const PackedBatch packed({4}, 3);
  OpHarness h(packed.batch, 4);
  const Node node = node_of(h, {.heads = 1, .head_dim = 8}, 4);
  h.tensor(node.inputs[0]).f32()[3] = NAN;  // first query
  h.forward(node);
  EXPECT_TRUE(std::isnan(h.floats(node.outputs[0])[0]));
  EXPECT_FALSE(std::isnan(h.floats(node.outputs[0])[8]));
}

}  // namespace
}  // namespace snug
