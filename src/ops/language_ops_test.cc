// The operators of language models: target rows, the head with its loss, conversion, cached
// attention and sampling.
#include <map>
#include <numeric>

#include "core/dtype.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/convert.h"
#include "ops/linear.h"
#include "ops/op_test_util.h"
#include "ops/sample.h"
#include "ops/target_rows.h"
#include "ops/vocabulary_loss.h"

namespace snug {
namespace {

// Sequences of which some tokens predict something.
struct TargetBatch : PackedBatch {
  std::vector<int32_t> target_rows, target_ids;

  TargetBatch(const std::vector<int>& lengths, int64_t every, int vocabulary, uint64_t seed)
      : PackedBatch(lengths, seed) {
    std::mt19937_64 random(seed);
    for (int32_t t = 0; t < int32_t(batch.dims.tokens); t += int32_t(every)) {
      target_rows.push_back(t);
      target_ids.push_back(int32_t(random() % uint64_t(vocabulary)));
    }
    batch.dims.targets = int64_t(target_rows.size());
    batch.target_rows = target_rows.data();
    batch.target_ids = target_ids.data();
  }
};

TEST(TargetRows, GathersAndScatters) {
  for (const int64_t hidden : {1, 7, 64}) {
    for (const bool accumulate : {false, true}) {
      const TargetBatch packed({1, 3, 17, 30, 2}, 3, 10, 3);
      OpHarness h(packed.batch, 4);
      const int64_t tokens = packed.batch.dims.tokens, targets = packed.batch.dims.targets;
      const Node node = {target_rows(), {h.random(tokens, hidden)}, {h.value(targets, hidden)}};
      h.forward(node);
      const Doubles dy = h.doubles(h.upstream(node.outputs[0]));
      h.want(node.inputs[0], accumulate);
      h.backward(node);
      const Doubles x = h.doubles(node.inputs[0]), y = h.doubles(node.outputs[0]);
      Doubles dx(x.size());
      for (size_t i = 0; i < size_t(targets); ++i) {
        for (size_t c = 0; c < size_t(hidden); ++c) {
          const size_t at = size_t(packed.target_rows[i]) * size_t(hidden) + c;
          EXPECT_EQ(y[i * size_t(hidden) + c], x[at]);
          dx[at] = dy[i * size_t(hidden) + c];
        }
      }
      EXPECT_TRUE(close("dx", h.gained(node.inputs[0]), dx, accumulate ? 8.0 * kEps : 0.0, 4));
    }
  }
}

struct VocabularyReference {
  double loss = 0;
  Doubles dx, dw, db;
};

VocabularyReference vocabulary_reference(const Batch& batch, const Doubles& x, const Doubles& w,
                                         const Doubles& b, size_t hidden, double scale) {
  const size_t vocabulary = b.size(), rows = x.size() / hidden;
  VocabularyReference out{0, Doubles(x.size()), Doubles(w.size()), Doubles(vocabulary)};
  for (size_t r = 0; r < rows; ++r) {
    Doubles logits(vocabulary);
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) {
      logits[v] = b[v];
      for (size_t c = 0; c < hidden; ++c) logits[v] += x[r * hidden + c] * w[v * hidden + c];
      sum += std::exp(logits[v]);
    }
    const auto target = size_t(batch.target_ids[r]);
    out.loss += scale * (std::log(sum) - logits[target]);
    for (size_t v = 0; v < vocabulary; ++v) {
      const double d = scale * (std::exp(logits[v]) / sum - (v == target));
      out.db[v] += d;
      for (size_t c = 0; c < hidden; ++c) {
        out.dx[r * hidden + c] += d * w[v * hidden + c];
        out.dw[v * hidden + c] += d * x[r * hidden + c];
      }
    }
  }
  return out;
}

TEST(VocabularyLoss, MatchesReferenceInAnyChunks) {
  for (const int vocabulary : {1, 3, 17, 1030}) {
    for (const int64_t chunk : {1, 4, 100}) {
      for (const bool with_bias : {false, true}) {
        const TargetBatch packed({5, 9, 1, 8}, 2, vocabulary, 5);
        OpHarness h(packed.batch, 6);
        h.step.loss_scale = 0.25f;
        const int64_t hidden = 12, targets = packed.batch.dims.targets;
        const Node node = {vocabulary_loss({.chunk = chunk, .with_gradient = true}),
                           {h.random(targets, hidden), h.random(vocabulary, hidden, 0.5),
                            with_bias ? h.random(1, vocabulary) : kNoValue},
                           {h.value(1, 1, DType::kF64)}};
        double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
        loss = 3.0;
        h.want(node.inputs[0], false);
        h.want(node.inputs[1], true);
        if (with_bias) h.want(node.inputs[2], true);
        h.forward(node);
        EXPECT_EQ(loss, 3.0) << "in training the loss comes with the gradients";
        h.backward(node);
        const Doubles b = with_bias ? h.doubles(node.inputs[2]) : Doubles(size_t(vocabulary));
        const auto expected =
            vocabulary_reference(packed.batch, h.doubles(node.inputs[0]), h.doubles(node.inputs[1]),
                                 b, size_t(hidden), 0.25);
        // Logits of about 3 round to a few eps; probabilities and sums over a dozen rows follow.
        const double tolerance = 100 * kEps;
        EXPECT_NEAR(loss - 3.0, expected.loss, tolerance * double(targets));
        EXPECT_TRUE(close("dx", h.gained(node.inputs[0]), expected.dx, tolerance, 6));
        EXPECT_TRUE(close("dw", h.gained(node.inputs[1]), expected.dw, tolerance, 6));
        if (with_bias) {
          EXPECT_TRUE(close("db", h.gained(node.inputs[2]), expected.db, tolerance, 6));
        }

        loss = 0;
        h.forward({vocabulary_loss({.chunk = chunk}), node.inputs, node.outputs});
        EXPECT_NEAR(loss, expected.loss, tolerance * double(targets)) << "evaluation";
      }
    }
  }
}

TEST(VocabularyLoss, ReferenceIsTheDerivative) {
  const TargetBatch packed({4, 3}, 1, 5, 5);
  OpHarness h(packed.batch, 6);
  const Doubles x = h.doubles(h.random(7, 3)), w = h.doubles(h.random(5, 3)),
                b = h.doubles(h.random(1, 5));
  const auto f = [&](const std::vector<Doubles>& in) {
    return vocabulary_reference(packed.batch, in[0], in[1], in[2], 3, 1.0).loss;
  };
  const auto expected = vocabulary_reference(packed.batch, x, w, b, 3, 1.0);
  EXPECT_TRUE(is_derivative(f, {x, w, b}, {expected.dx, expected.dw, expected.db}, 7));
}

TEST(VocabularyLoss, NanShowsAndLargeLogitsDoNotOverflow) {
  const TargetBatch packed({2}, 1, 2, 5);
  OpHarness h(packed.batch, 6);
  const Node node = {vocabulary_loss({.chunk = 2}),
                     {h.filled(2, 1, {1, 1}), h.filled(2, 1, {1e30f, -1e30f}), kNoValue},
                     {h.value(1, 1, DType::kF64)}};
  double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
  loss = 0;
  h.forward(node);
  EXPECT_TRUE(std::isfinite(loss));
  h.tensor(node.inputs[0]).f32()[1] = NAN;
  h.forward(node);
  EXPECT_TRUE(std::isnan(loss));
}

TEST(VocabularyLoss, SameOnTwoThreads) {
  expect_same_on_two_threads([] {
    const TargetBatch packed({50, 30}, 1, 300, 5);
    OpHarness h(packed.batch, 6);
    const Node node = {vocabulary_loss({.chunk = 16, .with_gradient = true}),
                       {h.random(80, 24), h.random(300, 24), h.random(1, 300)},
                       {h.value(1, 1, DType::kF64)}};
    *static_cast<double*>(h.tensor(node.outputs[0]).data) = 0;
    for (const ValueId v : node.inputs) h.want(v, v != node.inputs[0]);
    h.backward(node);
    return std::vector{h.floats(h.gradient(node.inputs[0])), h.floats(h.gradient(node.inputs[2]))};
  });
}

TEST(Convert, RoundsToNearestEven) {
  const Batch batch;
  OpHarness h(batch, 1);
  const ValueId x = h.random(3, 67);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const ValueId y = h.value(3, 67, dtype);
    h.forward({convert(), {x}, {y}});
    const auto* const bits = static_cast<const uint16_t*>(h.tensor(y).data);
    for (size_t i = 0; i < 3 * 67; ++i) {
      const float value = h.tensor(x).f32()[i];
      EXPECT_EQ(bits[i], dtype == DType::kBF16 ? float_to_bfloat16(value) : float_to_half(value));
    }
  }
}

TEST(Convert, WidensBfloat16) {
  const Batch batch;
  OpHarness h(batch, 1);
  const ValueId x = h.random(3, 67), half = h.value(3, 67, DType::kBF16),
                y = h.value(3, 67, DType::kF32);
  h.forward({convert(), {x}, {half}});
  h.forward({convert(), {half}, {y}});
  for (size_t i = 0; i < 3 * 67; ++i) {
    EXPECT_EQ(h.tensor(y).f32()[i], bfloat16_to_float(float_to_bfloat16(h.tensor(x).f32()[i])));
  }
}

// A weight stored [in, out] gives what its transpose gives.
TEST(LinearLayouts, TransposesAgree) {
  const Batch batch;
  constexpr int64_t kRows = 5, kIn = 7, kOut = 11;
  OpHarness h(batch, 2);
  const ValueId x = h.random(kRows, kIn), w = h.random(kOut, kIn), b = h.random(1, kOut);
  std::vector<float> transposed(size_t(kIn * kOut));
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      transposed[size_t(i * kOut + o)] = h.tensor(w).f32()[o * kIn + i];
    }
  }
  const ValueId wt = h.filled(kIn, kOut, transposed);
  const Node plain = {linear({}), {x, w, b}, {h.value(kRows, kOut)}};
  const Node other = {linear({.layout = WeightLayout::kInOut}), {x, wt, b}, {h.value(kRows, kOut)}};
  h.forward(plain);
  h.forward(other);
  const double tolerance = 50 * kEps;
  EXPECT_TRUE(close("y", h.doubles(other.outputs[0]), h.doubles(plain.outputs[0]), tolerance, 2));
  const auto gradients = [&](const Node& node, const std::vector<float>& dy, Doubles& dx,
                             Doubles& dw) {
    const ValueId upstream = h.upstream(node.outputs[0]);
    std::copy(dy.begin(), dy.end(), h.tensor(upstream).f32());
    h.want(node.inputs[0], false);
    h.want(node.inputs[1], true);
    h.backward(node);
    dx = h.gained(node.inputs[0]);
    dw = h.gained(node.inputs[1]);
  };
  std::vector<float> dy(size_t(kRows * kOut));
  for (size_t i = 0; i < dy.size(); ++i) dy[i] = float(i % 13) - 6;
  Doubles dx, dw, dx_other, dw_other, dw_transposed(size_t(kIn * kOut));
  gradients(plain, dy, dx, dw);
  gradients(other, dy, dx_other, dw_other);
  for (size_t o = 0; o < size_t(kOut); ++o) {
    for (size_t i = 0; i < size_t(kIn); ++i) {
      dw_transposed[i * size_t(kOut) + o] = dw[o * size_t(kIn) + i];
    }
  }
  EXPECT_TRUE(close("dx", dx_other, dx, 20 * tolerance, 2));
  EXPECT_TRUE(close("dw", dw_other, dw_transposed, 20 * tolerance, 2));
}

// A text read at once, in pieces or token by token, beside another text, gives what causal
// attention gives.
TEST(CachedAttention, AgreesWithCausalAttention) {
  constexpr int64_t kHeads = 3, kDim = 5, kHidden = kHeads * kDim, kContext = 12;
  const std::vector<int> lengths = {12, 7};
  const PackedBatch whole(lengths, 3);
  OpHarness h(whole.batch, 4);
  const ValueId qkv = h.random(19, 3 * kHidden), expected = h.value(19, kHidden),
                lse = h.value(19, kHeads);
  h.forward(
      {attention({.heads = kHeads, .head_dim = kDim, .causal = true}), {qkv}, {expected, lse}});
  const auto all = h.floats(qkv), want = h.floats(expected);
  for (const int piece : {1, 2, 5, 12}) {
    std::vector<float> cache(size_t(2 * kContext * 2 * kHidden), NAN);
    for (int first = 0; first < 12; first += piece) {
      // Tokens [first, first + piece) of both texts; the second one's place in the cache is 0, the
      // first one's 1.
      std::vector<int32_t> positions, row_of, source;
      for (int s = 0; s < 2; ++s) {
        for (int t = first; t < std::min(first + piece, lengths[size_t(s)]); ++t) {
          positions.push_back(t), row_of.push_back(s),
              source.push_back(whole.starts[size_t(s)] + t);
        }
      }
      const std::vector<uint64_t> samples = {1, 0};
      Batch batch;
      batch.dims = {.tokens = int64_t(positions.size()), .sequences = 2, .longest = kContext};
      batch.positions = positions.data(), batch.row_of = row_of.data(),
      batch.samples = samples.data();
      OpHarness part(batch, 5);
      const auto tokens = int64_t(positions.size());
      std::vector<float> rows;
      for (const int32_t t : source) {
        rows.insert(rows.end(), all.begin() + t * 3 * kHidden, all.begin() + (t + 1) * 3 * kHidden);
      }
      const ValueId in = part.filled(tokens, 3 * kHidden, rows), o = part.value(tokens, kHidden);
      const ValueId kept = part.filled(2 * kContext, 2 * kHidden, cache);
      part.forward({cached_attention({.heads = kHeads, .head_dim = kDim, .context = kContext}),
                    {in},
                    {o, kept}});
      cache = part.floats(kept);
      for (size_t i = 0; i < source.size(); ++i) {
        for (size_t c = 0; c < size_t(kHidden); ++c) {
          EXPECT_NEAR(part.tensor(o).f32()[i * size_t(kHidden) + c],
                      want[size_t(source[i]) * size_t(kHidden) + c], 20 * kEps);
        }
      }
    }
  }
}

// Draws many texts from one row of logits.
class SampleTest : public testing::Test {
 protected:
  static constexpr int kTexts = 4000;

  std::vector<double> frequencies(const SampleSpec& spec, const std::vector<float>& logits) {
    std::vector<int32_t> ids(kTexts, 1), positions(kTexts, 3), row_of(kTexts), rows(kTexts),
        labels(kTexts);
    std::vector<uint64_t> samples(kTexts, 0);
    for (int i = 0; i < kTexts; ++i) row_of[size_t(i)] = rows[size_t(i)] = labels[size_t(i)] = i;
    Batch batch;
    batch.dims = {.tokens = kTexts, .sequences = kTexts, .longest = 4, .targets = kTexts};
    batch.ids = ids.data(), batch.positions = positions.data(), batch.row_of = row_of.data(),
    batch.labels = labels.data();
    batch.samples = samples.data(), batch.target_rows = rows.data();
    OpHarness h(batch, 1);
    std::vector<float> all;
    for (int i = 0; i < kTexts; ++i) all.insert(all.end(), logits.begin(), logits.end());
    const auto vocabulary = int64_t(logits.size());
    const ValueId in = h.filled(kTexts, vocabulary, all), next = h.value(kTexts, 2);
    std::vector<ValueId> outputs = {next};
    if (spec.repetition_penalty != 1.0f) {
      outputs.push_back(h.value(1, vocabulary, DType::kU8));
      std::fill_n(static_cast<uint8_t*>(h.tensor(outputs[1]).data), vocabulary, uint8_t{0});
    }
    h.forward({sample(spec), {in}, outputs});
    std::vector<double> counts(logits.size());
    for (int i = 0; i < kTexts; ++i) {
      const auto id = size_t(h.tensor(next).f32()[2 * i]);
      counts[id] += 1.0 / kTexts;
      log_probability_[id] = h.tensor(next).f32()[2 * i + 1];
    }
    return counts;
  }

  static std::vector<double> softmax(std::vector<double> logits) {
    double sum = 0;
    for (double& x : logits) sum += x = std::exp(x);
    for (double& x : logits) x /= sum;
    return logits;
  }

  void expect_drawn_from(const SampleSpec& spec, const std::vector<float>& logits,
                         const std::vector<double>& probabilities) {
    const auto drawn = frequencies(spec, logits);
    for (size_t i = 0; i < drawn.size(); ++i) {
      const double p = probabilities[i], deviation = std::sqrt(p * (1 - p) / kTexts);
      EXPECT_NEAR(drawn[i], p, 5 * deviation + 1e-9) << "token " << i;
      if (drawn[i] > 0) {
        EXPECT_NEAR(log_probability_[i], std::log(p), 1e-5) << "token " << i;
      }
    }
  }

  std::map<size_t, double> log_probability_;
};

constexpr double kOut = -1e9;

TEST_F(SampleTest, DrawsFromTheSoftmax) {
  expect_drawn_from({.temperature = 1, .seed = 7}, {0, 1, 2, -1}, softmax({0, 1, 2, -1}));
  expect_drawn_from({.temperature = 0.5, .seed = 8}, {0, 1, 2, -1}, softmax({0, 2, 4, -2}));
}

TEST_F(SampleTest, TopKKeepsTheLargestAndTheirEquals) {
  expect_drawn_from({.temperature = 1, .top_k = 2}, {0, 1, 2, -1}, softmax({kOut, 1, 2, kOut}));
  expect_drawn_from({.temperature = 1, .top_k = 2}, {1, 1, 2, -1}, softmax({1, 1, 2, kOut}));
  expect_drawn_from({.temperature = 1, .top_k = 9}, {0, 1, 2, -1}, softmax({0, 1, 2, -1}));
}

TEST_F(SampleTest, TopPKeepsTheLeastThatHasTheShare) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.25f),
                                     std::log(0.15f)};
  expect_drawn_from({.temperature = 1, .top_p = 0.7f}, logits, {0, 2.0 / 3, 1.0 / 3, 0});
  expect_drawn_from({.temperature = 1, .top_p = 0.01f}, logits, {0, 1, 0, 0});
  expect_drawn_from({.temperature = 1, .top_k = 2, .top_p = 0.66f}, logits, {0, 1, 0, 0});
}

TEST_F(SampleTest, RepetitionsArePunishedOnEitherSideOfZero) {
  // Every text holds token 1.
  expect_drawn_from({.temperature = 1, .repetition_penalty = 2}, {0, 1, 0.5},
                    softmax({0, 0.5, 0.5}));
  expect_drawn_from({.temperature = 1, .repetition_penalty = 2}, {0, -1, 0.5},
                    softmax({0, -2, 0.5}));
}

TEST_F(SampleTest, GreedyTakesTheFirstOfEquals) {
  const auto drawn = frequencies({.temperature = 0}, {0, 3, 3, 1});
  EXPECT_NEAR(drawn[1], 1, 1e-9);
  EXPECT_NEAR(log_probability_[1], std::log(softmax({0, 3, 3, 1})[1]), 1e-6);
}

TEST(SampleDraw, DependsOnSeedTextAndPosition) {
  EXPECT_EQ(sample_draw(1, 2, 3), sample_draw(1, 2, 3));
  EXPECT_NE(sample_draw(1, 2, 3), sample_draw(2, 2, 3));
  EXPECT_NE(sample_draw(1, 2, 3), sample_draw(1, 3, 3));
  EXPECT_NE(sample_draw(1, 2, 3), sample_draw(1, 2, 4));
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(sample_draw(1, 2, i) >= 0 && sample_draw(1, 2, i) < 1);
  }
}

}  // namespace
}  // namespace snug
