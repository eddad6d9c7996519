#include "ops/end_attention.h"

#include "ops/dropout_mask.h"
#include "ops/op_test_util.h"

namespace snug {
namespace {

// The plain way, with keys and values of all tokens.
struct Reference {
  const Batch& batch;
  EndAttentionSpec spec;
  DropoutMask mask;

  size_t hidden() const { return size_t(spec.hidden()); }

  // Of x, ends, w and b; with do their gradients behind it.
  struct Results {
    Doubles o, dx, dends, dw, db;
  };
  Results run(const std::vector<Doubles>& inputs, const Doubles& d_o) const {
    const Doubles &x = inputs[0], &ends = inputs[1], &w = inputs[2], &b = inputs[3];
    Results r{Doubles(ends.size()), Doubles(x.size()), Doubles(ends.size()), Doubles(w.size()),
              Doubles(b.size())};
    for (size_t s = 0; s < size_t(batch.dims.sequences); ++s) {
      for (size_t head = 0; head < size_t(spec.heads); ++head) {
        one_head(x, ends, w, b, d_o, s, head, r);
      }
    }
    return r;
  }

 private:
  // Row `part` * hidden + `column` of the layer, applied to a row of `from`.
  double projected(const Doubles& from, size_t row, const Doubles& w, const Doubles& b, size_t part,
                   size_t column) const {
    double sum = b[part * hidden() + column];
    for (size_t c = 0; c < hidden(); ++c) {
      sum += from[row * hidden() + c] * w[(part * hidden() + column) * hidden() + c];
    }
    return sum;
  }
  void add_gradient(double dy, const Doubles& from, size_t row, const Doubles& w, size_t part,
                    size_t column, Doubles& d_from, Results& r) const {
    const size_t of_layer = part * hidden() + column;
    r.db[of_layer] += dy;
    for (size_t c = 0; c < hidden(); ++c) {
      r.dw[of_layer * hidden() + c] += dy * from[row * hidden() + c];
      d_from[row * hidden() + c] += dy * w[of_layer * hidden() + c];
    }
  }
  void one_head(const Doubles& x, const Doubles& ends, const Doubles& w, const Doubles& b,
                const Doubles& d_o, size_t s, size_t head, Results& r) const {
    const size_t dim = size_t(spec.head_dim), first = size_t(batch.starts[s]),
                 length = size_t(batch.starts[s + 1]) - first;
    const double scale = 1.0 / std::sqrt(double(dim));
    Doubles q(dim), k(length * dim), v(length * dim), p(length), factors(length);
    double most = -1e300, sum = 0.0;
    for (size_t i = 0; i < dim; ++i) q[i] = projected(ends, s, w, b, 0, head * dim + i);
    for (size_t t = 0; t < length; ++t) {
      for (size_t i = 0; i < dim; ++i) {
        k[t * dim + i] = projected(x, first + t, w, b, 1, head * dim + i);
        v[t * dim + i] = projected(x, first + t, w, b, 2, head * dim + i);
        p[t] += q[i] * k[t * dim + i] * scale;
      }
      most = std::max(most, p[t]);
      factors[t] = mask_factor(mask, {batch.samples[s], 0, uint32_t(head)}, uint32_t(t));
    }
    for (double& value : p) sum += value = std::exp(value - most);
    double delta = 0.0;
    Doubles dp(length), dq(dim);
    for (size_t t = 0; t < length; ++t) {
      p[t] /= sum;
      for (size_t i = 0; i < dim; ++i) {
        r.o[s * hidden() + head * dim + i] += p[t] * factors[t] * v[t * dim + i];
        dp[t] += d_o[s * hidden() + head * dim + i] * v[t * dim + i] * factors[t];
      }
      delta += p[t] * dp[t];
    }
    for (size_t t = 0; t < length; ++t) {
      const double ds = p[t] * (dp[t] - delta) * scale;
      for (size_t i = 0; i < dim; ++i) {
        dq[i] += ds * k[t * dim + i];
        add_gradient(ds * q[i], x, first + t, w, 1, head * dim + i, r.dx, r);
        add_gradient(p[t] * factors[t] * d_o[s * hidden() + head * dim + i], x, first + t, w, 2,
                     head * dim + i, r.dx, r);
      }
    }
    for (size_t i = 0; i < dim; ++i) add_gradient(dq[i], ends, s, w, 0, head * dim + i, r.dends, r);
  }
};

struct Case {
  EndAttentionSpec spec;
  std::vector<int> lengths;
  bool accumulate;
};

Node node_of(OpHarness& h, const EndAttentionSpec& spec, const Batch& batch) {
  const int64_t hidden = spec.hidden(), tokens = batch.dims.tokens,
                sequences = batch.dims.sequences;
  return {end_attention(spec),
          {h.random(tokens, hidden), h.random(sequences, hidden),
           h.random(3 * hidden, hidden, 1.0 / std::sqrt(double(hidden))), h.random(1, 3 * hidden)},
          {h.value(sequences, hidden), h.value(sequences, hidden), h.value(tokens, spec.heads),
           h.value(sequences, spec.heads * hidden), h.value(sequences, spec.heads)}};
}

const std::vector<Case> kCases = {{{1, 1, 0.0f, 3}, {1}, false},
                                  {{2, 3, 0.1f, 3}, {5, 1, 9}, true},
                                  {{4, 16, 0.1f, 7}, {1, 33, 2, 17}, false},
                                  {{3, 20, 0.5f, 1}, {100, 3, 60}, true},
                                  {{12, 8, 0.0f, 1}, {64, 64}, false}};

TEST(EndAttention, MatchesThePlainWay) {
  for (const auto& [spec, lengths, accumulate] : kCases) {
    SCOPED_TRACE(testing::Message()
                 << spec.heads << " heads of " << spec.head_dim << ", dropout " << spec.dropout);
    const PackedBatch packed(lengths, 5);
    OpHarness h(packed.batch, 6);
    h.step = {.seed = 9, .training = true};
    const Node node = node_of(h, spec, packed.batch);
    h.forward(node);
    const Doubles d_o = h.doubles(h.upstream(node.outputs[0]));
    std::vector<Doubles> inputs;
    for (size_t i = 0; i < 4; ++i) {
      inputs.push_back(h.doubles(node.inputs[i]));
      h.want(node.inputs[i], accumulate || i >= 2);
    }
    h.backward(node);
    const Reference reference{packed.batch, spec, dropout_mask(spec.dropout, spec.site, h.step)};
    const auto expected = reference.run(inputs, d_o);
    // Sums of hidden products of about one, some behind each other.
    const double tolerance = 32.0 * kEps * std::sqrt(double(spec.hidden()));
    EXPECT_TRUE(close("o", h.doubles(node.outputs[0]), expected.o,
                      tolerance * (1.0 + largest(expected.o)), 6));
    const Doubles* const gradients[] = {&expected.dx, &expected.dends, &expected.dw, &expected.db};
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(close("gradient " + std::to_string(i), h.gained(node.inputs[i]), *gradients[i],
                        tolerance * (4.0 + largest(*gradients[i])), 6));
    }
  }
}

TEST(EndAttention, TheReferenceIsADerivative) {
  for (const auto& [spec, lengths, accumulate] : kCases) {
    if (spec.hidden() > 100) continue;
    const PackedBatch packed(lengths, 5);
    OpHarness h(packed.batch, 6);
    const Node node = node_of(h, spec, packed.batch);
    const Reference reference{packed.batch, spec,
                              dropout_mask(spec.dropout, spec.site, {.seed = 9, .training = true})};
    std::vector<Doubles> inputs;
    for (const ValueId in : node.inputs) inputs.push_back(h.doubles(in));
    const Doubles d_o = h.doubles(h.random(packed.batch.dims.sequences, spec.hidden()));
    const auto results = reference.run(inputs, d_o);
    EXPECT_TRUE(is_derivative(
        [&](const std::vector<Doubles>& at) { return dot(reference.run(at, d_o).o, d_o); }, inputs,
        {results.dx, results.dends, results.dw, results.db}, 8));
  }
}

// Frozen weights and states that nobody wants a gradient of.
TEST(EndAttention, GradientsAreOptional) {
  const EndAttentionSpec spec{2, 8, 0.1f, 3};
  const PackedBatch packed({7, 20}, 5);
  for (size_t only = 0; only < 4; ++only) {
    const auto gradients = [&](bool all) {
      OpHarness h(packed.batch, 6);
      h.step = {.seed = 9, .training = true};
      const Node node = node_of(h, spec, packed.batch);
      h.forward(node);
      h.upstream(node.outputs[0]);
      for (size_t i = 0; i < 4; ++i) {
        if (all || i == only) h.want(node.inputs[i], true);
      }
      h.backward(node);
      return h.gained(node.inputs[only]);
    };
    // What they are added to is not the same: rounding of sums up to about 8.
    EXPECT_TRUE(
        close("gradient " + std::to_string(only), gradients(false), gradients(true), 8 * kEps, 6));
  }
}

}  // namespace
}  // namespace snug
