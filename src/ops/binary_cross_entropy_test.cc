#include "ops/binary_cross_entropy.h"

#include "ops/op_test_util.h"

namespace snug {
namespace {

// -log of the probability of what is wanted, by its definition; logits are small here.
double reference_loss(const Doubles& logits, const std::vector<bool>& wanted, size_t classes,
                      double scale) {
  double loss = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = 1.0 / (1.0 + std::exp(-logits[i]));
    loss -= scale / double(classes) * std::log(wanted[i] ? p : 1.0 - p);
  }
  return loss;
}

Doubles reference_gradient(const Doubles& logits, const std::vector<bool>& wanted, size_t classes,
                           double scale) {
  Doubles d;
  for (size_t i = 0; i < logits.size(); ++i) {
    d.push_back(scale / double(classes) *
                (1.0 / (1.0 + std::exp(-logits[i])) - (wanted[i] ? 1.0 : 0.0)));
  }
  return d;
}

// Bits by chance: the words of labels, and the same one by one.
struct Labels {
  std::vector<int32_t> words;
  std::vector<bool> wanted;

  Labels(size_t sequences, size_t classes, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t s = 0; s < sequences; ++s) {
      for (size_t word = 0; word < (classes + 31) / 32; ++word) {
        words.push_back(int32_t(uint32_t(random())));
      }
      for (size_t c = 0; c < classes; ++c) {
        const auto word = uint32_t(words[words.size() - (classes + 31) / 32 + c / 32]);
        wanted.push_back(word & (1u << (c % 32)));
      }
    }
  }
};

TEST(BinaryCrossEntropy, MatchesReferenceAndAccumulates) {
  for (size_t classes : {1, 2, 31, 32, 33, 64, 100}) {
    for (const float scale : {1.0f, 0.3f}) {
      PackedBatch packed(std::vector<int>(7, 1), 3);
      const Labels labels(7, classes, classes);
      packed.set_labels(labels.words);
      OpHarness h(packed.batch, 4);
      h.step.loss_scale = scale;
      const auto cols = int64_t(classes);
      const Node node = {binary_cross_entropy({cols}),
                         {h.random(7, cols, 3.0)},
                         {h.value(1, 1, DType::kF64), h.value(7, cols)}};
      double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
      loss = 5.0;
      h.forward(node);
      const Doubles logits = h.doubles(node.inputs[0]);
      const double expected = reference_loss(logits, labels.wanted, classes, scale);
      EXPECT_NEAR(loss, 5.0 + expected, 1e-11);
      EXPECT_TRUE(close("dlogits", h.doubles(node.outputs[1]),
                        reference_gradient(logits, labels.wanted, classes, scale), scale * kEps,
                        4));
      h.forward({node.op, node.inputs, {node.outputs[0], kNoValue}});
      EXPECT_NEAR(loss, 5.0 + 2.0 * expected, 1e-11);
    }
  }
}

TEST(BinaryCrossEntropy, ReferenceGradientIsADerivative) {
  const PackedBatch packed({1, 1, 1}, 5);
  OpHarness h(packed.batch, 6);
  const Doubles logits = h.doubles(h.random(3, 4));
  const Labels labels(3, 4, 1);
  const auto f = [&](const std::vector<Doubles>& in) {
    return reference_loss(in[0], labels.wanted, 4, 1.0);
  };
  EXPECT_TRUE(is_derivative(f, {logits}, {reference_gradient(logits, labels.wanted, 4, 1.0)}, 7));
}

TEST(BinaryCrossEntropy, SurvivesLargeLogitsAndShowsNan) {
  PackedBatch packed({1}, 3);
  packed.set_labels({0b0011});
  OpHarness h(packed.batch, 4);
  const Node node = {binary_cross_entropy({4}),
                     {h.filled(1, 4, {1e30f, -1000.0f, 1000.0f, -1e30f})},
                     {h.value(1, 1, DType::kF64), h.value(1, 4)}};
  double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
  loss = 0.0;
  h.forward(node);
  EXPECT_NEAR(loss, 500.0, 1e-9);
  EXPECT_EQ(h.floats(node.outputs[1]), (std::vector<float>{0.0f, -0.25f, 0.25f, 0.0f}));
  h.tensor(node.inputs[0]).f32()[1] = NAN;
  h.forward(node);
  EXPECT_TRUE(std::isnan(loss));
}

}  // namespace
}  // namespace snug
