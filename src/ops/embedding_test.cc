#include "ops/embedding.h"

#include "ops/dropout_mask.h"
#include "ops/op_test_util.h"
#include "ops/quantize.h"

namespace snug {
namespace {

constexpr int64_t kVocab = 50, kPositions = 310, kTypes = 2;

// The plain loops. Inputs are {word, position, type, gamma, beta}.
struct Reference {
  const Batch& batch;
  EmbeddingSpec spec;
  DropoutMask mask;
  double largest_rstd = 1.0;

  size_t hidden() const { return size_t(spec.hidden); }
  double factor(size_t t, size_t c) const {
    return mask_factor(mask, token_mask_row(batch, int64_t(t)), uint32_t(c));
  }
  // Which rows of the tables token t reads.
  std::array<size_t, 3> rows(size_t t) const {
    return {size_t(batch.ids[t]), size_t(batch.positions[t] + spec.position_offset),
            size_t(batch.type_ids[t])};
  }
  Doubles normalized(const std::vector<Doubles>& in, size_t t, double& rstd) const {
    const size_t n = hidden();
    Doubles s(n);
    for (size_t table = 0; table < 3; ++table) {
      for (size_t c = 0; c < n && !in[table].empty(); ++c) {
        s[c] += in[table][rows(t)[table] * n + c];
      }
    }
    rstd = 1.0;
    if (!spec.norm) return s;
    double mean = 0.0, variance = 0.0;
    for (double v : s) mean += v / double(n);
    for (double v : s) variance += (v - mean) * (v - mean) / double(n);
    rstd = 1.0 / std::sqrt(variance + double(spec.eps));
    for (double& v : s) v = (v - mean) * rstd;
    return s;
  }
  Doubles forward(const std::vector<Doubles>& in) {
    Doubles y;
    for (size_t t = 0; t < size_t(batch.dims.tokens); ++t) {
      double rstd;
      const Doubles xhat = normalized(in, t, rstd);
      largest_rstd = std::max(largest_rstd, rstd);
      for (size_t c = 0; c < hidden(); ++c) {
        y.push_back((spec.norm ? xhat[c] * in[3][c] + in[4][c] : xhat[c]) * factor(t, c));
      }
    }
    return y;
  }
  std::vector<Doubles> backward(const std::vector<Doubles>& in, const Doubles& dy) const {
    std::vector<Doubles> d;
    for (const Doubles& values : in) d.emplace_back(values.size());
    const size_t n = hidden();
    for (size_t t = 0; t < size_t(batch.dims.tokens); ++t) {
      double rstd, mean = 0.0, mean_x = 0.0;
      const Doubles xhat = normalized(in, t, rstd);
      Doubles g(n);
      for (size_t c = 0; c < n; ++c) {
        g[c] = dy[t * n + c] * factor(t, c);
        if (!spec.norm) continue;
        d[3][c] += g[c] * xhat[c];
        d[4][c] += g[c];
        g[c] *= in[3][c];
        mean += g[c] / double(n);
        mean_x += g[c] * xhat[c] / double(n);
      }
      for (size_t c = 0; c < n; ++c) {
        const double ds = spec.norm ? rstd * (g[c] - mean - xhat[c] * mean_x) : g[c];
        for (size_t table = 0; table < 3; ++table) {
          const bool fixed = table == 0 && int64_t(rows(t)[0]) == spec.padding_id;
          if (!d[table].empty() && !fixed) d[table][rows(t)[table] * n + c] += ds;
        }
      }
    }
    return d;
  }
};

Node node_of(OpHarness& h, const EmbeddingSpec& spec, int64_t tokens, bool types) {
  Node node = {embedding(spec),
               {h.random(kVocab, spec.hidden), h.random(kPositions, spec.hidden),
                types ? h.random(kTypes, spec.hidden) : kNoValue, kNoValue, kNoValue},
               {h.value(tokens, spec.hidden), kNoValue}};
  if (spec.norm) {
    node.inputs[3] = h.random(1, spec.hidden, 0.3, 1.0);
    node.inputs[4] = h.random(1, spec.hidden);
    node.outputs[1] = h.value(tokens, 2);
  }
  return node;
}

std::vector<Doubles> input_doubles(const OpHarness& h, const Node& node) {
  std::vector<Doubles> in;
  for (ValueId v : node.inputs) in.push_back(v == kNoValue ? Doubles() : h.doubles(v));
  return in;
}

void check_case(const EmbeddingSpec& spec, const std::vector<int>& lengths, bool types,
                uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "hidden " << spec.hidden << ", norm " << spec.norm
                                  << ", dropout " << spec.dropout);
  const PackedBatch packed(lengths, seed, kVocab, kTypes);
  OpHarness h(packed.batch, seed);
  h.step = {.seed = 31, .training = true};
  const Node node = node_of(h, spec, packed.batch.dims.tokens, types);
  Reference reference = {packed.batch, spec, dropout_mask(spec.dropout, spec.site, h.step)};
  const std::vector<Doubles> in = input_doubles(h, node);
  h.forward(node);
  const Doubles y = reference.forward(in);
  // Sums of three values below `size`, normalised: as for residual_norm.
  const double size = largest(in[0]) + largest(in[1]) + largest(in[2]);
  const double xhat_error = 16.0 * kEps * size * reference.largest_rstd;
  const double gamma = spec.norm ? largest(in[3]) : 1.0;
  EXPECT_TRUE(close("y", h.doubles(node.outputs[0]), y,
                    reference.mask.scale * xhat_error * gamma * (1.0 + largest(y)), seed));

  const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
  for (ValueId v : node.inputs) {
    if (v != kNoValue) h.want(v, true);
  }
  h.backward(node);
  const auto expected = reference.backward(in, dy);
  // One token's share is off by `relative` times its bound; up to all tokens meet in one row, and
  // their errors add up like a random walk.
  const double share =
      reference.mask.scale * largest(dy) * gamma * reference.largest_rstd * (1.0 + largest(y));
  const double relative = 16.0 * kEps + 4.0 * xhat_error;
  const double tolerance =
      relative * share * std::sqrt(double(packed.batch.dims.tokens)) + 16.0 * kEps;
  for (size_t n = 0; n < in.size(); ++n) {
    if (node.inputs[n] == kNoValue) continue;
    EXPECT_TRUE(close("gradient", h.gained(node.inputs[n]), expected[n], tolerance, seed))
        << "of input " << n;
  }
}

TEST(Embedding, MatchesReference) {
  on_each_target([] {
    uint64_t seed = 1;
    for (int64_t hidden : {1, 3, 7, 16, 33, 65, 257}) {
      for (float dropout : {0.0f, 0.1f}) {
        const EmbeddingSpec spec = {.hidden = hidden,
                                    .norm = seed % 5 != 0,
                                    .eps = 1e-5f,
                                    .dropout = dropout,
                                    .site = 3,
                                    .position_offset = int64_t(seed % 3),
                                    .padding_id = int64_t(seed % 4) - 1};
        check_case(spec, {1, 3, 17, 70, 2}, seed % 4 != 0, seed);
        ++seed;
      }
    }
  });
}

TEST(Embedding, MatchesReferenceForALongSequence) {
  check_case({.hidden = 48, .eps = 1e-12f, .dropout = 0.1f, .site = 1, .position_offset = 2},
             {2, 300}, true, 7);
}

TEST(Embedding, ReferenceGradientIsADerivative) {
  for (bool norm : {true, false}) {
    const PackedBatch packed({3, 6}, 5, kVocab, kTypes);
    const EmbeddingSpec spec = {
        .hidden = 5, .norm = norm, .eps = 1e-5f, .dropout = 0.3f, .site = 9};
    Reference reference = {packed.batch, spec,
                           dropout_mask(0.3f, 9, {.seed = 8, .training = true})};
    OpHarness h(packed.batch, 6);
    const Node node = node_of(h, spec, 9, true);
    const std::vector<Doubles> in = input_doubles(h, node);
    const Doubles dy = h.doubles(h.random(9, 5));
    const auto f = [&](const std::vector<Doubles>& x) { return dot(reference.forward(x), dy); };
    EXPECT_TRUE(is_derivative(f, in, reference.backward(in, dy), 7));
  }
}

// A table of int8 rows is the table of the numbers they stand for.
TEST(Embedding, ReadsQuantizedWords) {
  on_each_target([] {
    for (int64_t hidden : {1, 7, 16, 67}) {
      for (bool norm : {true, false}) {
        const PackedBatch packed({3, 6, 1}, 5, kVocab, kTypes);
        OpHarness h(packed.batch, 6);
        const Node exact =
            node_of(h, {.hidden = hidden, .norm = norm, .eps = 1e-5f, .dropout = 0.1f, .site = 2},
                    10, true);
        Node quantized = exact;
        quantized.inputs[0] = h.value(kVocab, hidden, DType::kI8);
        quantized.inputs.push_back(h.value(1, kVocab));
        quantized.outputs = {h.value(10, hidden), norm ? h.value(10, 2) : kNoValue};
        float* const word = h.tensor(exact.inputs[0]).f32();
        auto* const bytes = static_cast<int8_t*>(h.tensor(quantized.inputs[0]).data);
        float* const scales = h.tensor(quantized.inputs[5]).f32();
        quantize_rows(word, kVocab, hidden, bytes, scales);
        dequantize_rows(bytes, scales, kVocab, hidden, word);
        const auto results = [&](const Node& node) {
          h.forward(node);
          const ValueId dy = h.upstream(node.outputs[0]);
          std::fill_n(h.tensor(dy).f32(), 10 * hidden, 0.5f);
          std::vector<std::vector<float>> all = {h.floats(node.outputs[0])};
          for (size_t i = 1; i < 5; ++i) {
            if (node.inputs[i] == kNoValue) continue;
            h.want(node.inputs[i], true);
            std::fill_n(h.tensor(h.gradient(node.inputs[i])).f32(), h.tensor(node.inputs[i]).size(),
                        1.0f);
          }
          h.backward(node);
          for (size_t i = 1; i < 5; ++i) {
            if (node.inputs[i] != kNoValue) all.push_back(h.floats(h.gradient(node.inputs[i])));
          }
          return all;
        };
        // One multiplication more or less is rounded on its way into the sum: some units in the
        // last place of numbers below 8.
        const auto got = results(quantized), want = results(exact);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].size(), want[i].size());
          for (size_t j = 0; j < got[i].size(); ++j) {
            ASSERT_NEAR(got[i][j], want[i][j], 128 * kEps)
                << "hidden " << hidden << ", norm " << norm << ", result " << i;
          }
        }
      }
    }
  });
}

TEST(Embedding, DoesNotDependOnThreads) {
  expect_same_on_two_threads([] {
    const PackedBatch packed({5, 60, 33}, 3, kVocab, kTypes);
    OpHarness h(packed.batch, 4);
    h.step = {.seed = 5, .training = true};
    const Node node =
        node_of(h, {.hidden = 333, .eps = 1e-5f, .dropout = 0.1f, .site = 2}, 98, true);
    h.forward(node);
    h.upstream(node.outputs[0]);
    for (ValueId input : node.inputs) h.want(input, true);
    h.backward(node);
    std::vector<std::vector<float>> results = {h.floats(node.outputs[0])};
    for (ValueId v : node.inputs) results.push_back(h.floats(h.gradient(v)));
    return results;
  });
}

}  // namespace
}  // namespace snug
