#include "ops/span_loss.h"

#include "ops/op_test_util.h"

namespace snug {
namespace {

double reference_loss(const Batch& batch, const Doubles& logits, double scale) {
  double loss = 0.0;
  for (int64_t s = 0; s < batch.dims.sequences; ++s) {
    for (int64_t end = 0; end < 2; ++end) {
      const int32_t label = batch.labels[2 * s + end];
      if (label < 0) continue;
      double sum = 0.0;
      for (int64_t t = batch.starts[s]; t < batch.starts[s + 1]; ++t) {
        sum += std::exp(logits[size_t(2 * t + end)]);
      }
      loss += scale / 2 * (std::log(sum) - logits[size_t(2 * (batch.starts[s] + label) + end)]);
    }
  }
  return loss;
}

Doubles reference_gradient(const Batch& batch, const Doubles& logits, double scale) {
  Doubles d(logits.size());
  for (int64_t s = 0; s < batch.dims.sequences; ++s) {
    for (int64_t end = 0; end < 2; ++end) {
      const int32_t label = batch.labels[2 * s + end];
      if (label < 0) continue;
      double sum = 0.0;
      for (int64_t t = batch.starts[s]; t < batch.starts[s + 1]; ++t) {
        sum += std::exp(logits[size_t(2 * t + end)]);
      }
      for (int64_t t = batch.starts[s]; t < batch.starts[s + 1]; ++t) {
        d[size_t(2 * t + end)] = scale / 2 *
                                 (std::exp(logits[size_t(2 * t + end)]) / sum -
                                  (t - batch.starts[s] == label ? 1.0 : 0.0));
      }
    }
  }
  return d;
}

// Ends by chance, some of them not known, some of them the last token.
void set_random_spans(PackedBatch& packed, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> words;
  for (size_t s = 0; s + 1 < packed.starts.size(); ++s) {
    const int32_t length = packed.starts[s + 1] - packed.starts[s];
    for (int end = 0; end < 2; ++end) {
      words.push_back(random() % 4 == 0   ? -1
                      : random() % 4 == 1 ? length - 1
                                          : int32_t(random() % uint64_t(length)));
    }
  }
  packed.set_labels(words);
}

TEST(SpanLoss, MatchesReferenceAndAccumulates) {
  uint64_t seed = 1;
  for (const std::vector<int>& lengths :
       {std::vector<int>{1}, {1, 1, 1}, {5, 1, 300, 17}, {2, 64, 4099, 3}}) {
    for (const float scale : {1.0f, 0.3f}) {
      PackedBatch packed(lengths, ++seed);
      set_random_spans(packed, seed);
      OpHarness h(packed.batch, seed);
      h.step.loss_scale = scale;
      const int64_t tokens = packed.batch.dims.tokens;
      const Node node = {span_loss(),
                         {h.random(tokens, 2, 3.0)},
                         {h.value(1, 1, DType::kF64), h.value(tokens, 2)}};
      double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
      loss = 5.0;
      h.forward(node);
      const Doubles logits = h.doubles(node.inputs[0]);
      const double expected = reference_loss(packed.batch, logits, scale);
      EXPECT_NEAR(loss, 5.0 + expected, 1e-11);
      EXPECT_TRUE(close("dlogits", h.doubles(node.outputs[1]),
                        reference_gradient(packed.batch, logits, scale), scale * kEps, seed));
      h.forward({node.op, node.inputs, {node.outputs[0], kNoValue}});
      EXPECT_NEAR(loss, 5.0 + 2.0 * expected, 1e-11);
    }
  }
}

TEST(SpanLoss, ReferenceGradientIsADerivative) {
  PackedBatch packed({3, 1, 7}, 5);
  packed.set_labels({2, 0, 0, -1, 3, 6});
  OpHarness h(packed.batch, 6);
  const Doubles logits = h.doubles(h.random(11, 2));
  const auto f = [&](const std::vector<Doubles>& in) {
    return reference_loss(packed.batch, in[0], 1.0);
  };
  EXPECT_TRUE(is_derivative(f, {logits}, {reference_gradient(packed.batch, logits, 1.0)}, 7));
}

TEST(SpanLoss, SurvivesLargeLogitsAndShowsNan) {
  PackedBatch packed({2}, 3);
  packed.set_labels({0, 1});
  OpHarness h(packed.batch, 4);
  const Node node = {span_loss(),
                     {h.filled(2, 2, {1e30f, -1e30f, 0.0f, -1e30f})},
                     {h.value(1, 1, DType::kF64), h.value(2, 2)}};
  double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
  loss = 0.0;
  h.forward(node);
  EXPECT_NEAR(loss, std::log(2.0) / 2, 1e-12);
  h.tensor(node.inputs[0]).f32()[2] = NAN;
  h.forward(node);
  EXPECT_TRUE(std::isnan(loss));
}

}  // namespace
}  // namespace snug
