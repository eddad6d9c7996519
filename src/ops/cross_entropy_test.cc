#include "ops/cross_entropy.h"

#include "ops/op_test_util.h"

namespace snug {
namespace {

double reference_loss(const Batch& batch, const Doubles& logits, size_t classes, double scale) {
  double loss = 0.0;
  for (size_t s = 0; s < size_t(batch.dims.sequences); ++s) {
    if (batch.labels[s] < 0) continue;
    double sum = 0.0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(logits[s * classes + c]);
    loss += scale * (std::log(sum) - logits[s * classes + size_t(batch.labels[s])]);
  }
  return loss;
}

Doubles reference_gradient(const Batch& batch, const Doubles& logits, size_t classes,
                           double scale) {
  Doubles d(logits.size());
  for (size_t s = 0; s < size_t(batch.dims.sequences); ++s) {
    if (batch.labels[s] < 0) continue;
    double sum = 0.0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(logits[s * classes + c]);
    for (size_t c = 0; c < classes; ++c)
      d[s * classes + c] = scale * std::exp(logits[s * classes + c]) / sum;
    d[s * classes + size_t(batch.labels[s])] -= scale;
  }
  return d;
}

TEST(CrossEntropy, MatchesReferenceAndAccumulates) {
  for (int classes : {1, 2, 3, 17, 1000}) {
    const PackedBatch packed(std::vector<int>(11, 1), 3, 50, 2, classes);
    OpHarness h(packed.batch, 4);
    h.step.loss_scale = 0.125f;
    const Node node = {cross_entropy({.classes = classes}),
                       {h.random(11, classes, 3.0)},
                       {h.value(1, 1, DType::kF64), h.value(11, classes)}};
    double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
    loss = 5.0;
    h.forward(node);
    const Doubles logits = h.doubles(node.inputs[0]);
    // The op works in fp64 on the same logits; only its gradient is rounded to fp32.
    EXPECT_NEAR(loss, 5.0 + reference_loss(packed.batch, logits, size_t(classes), 0.125), 1e-12);
    EXPECT_TRUE(close("dlogits", h.doubles(node.outputs[1]),
                      reference_gradient(packed.batch, logits, size_t(classes), 0.125),
                      0.125 * kEps, 4));
    h.forward({node.op, node.inputs, {node.outputs[0], kNoValue}});
    EXPECT_NEAR(loss, 5.0 + 2.0 * reference_loss(packed.batch, logits, size_t(classes), 0.125),
                1e-12);
  }
}

TEST(CrossEntropy, ReferenceGradientIsADerivative) {
  const PackedBatch packed({1, 1, 1, 1, 1}, 5);
  OpHarness h(packed.batch, 6);
  const Doubles logits = h.doubles(h.random(5, 3));
  const auto f = [&](const std::vector<Doubles>& in) {
    return reference_loss(packed.batch, in[0], 3, 1.0);
  };
  EXPECT_TRUE(is_derivative(f, {logits}, {reference_gradient(packed.batch, logits, 3, 1.0)}, 7));
}

TEST(CrossEntropy, SurvivesLargeLogitsAndShowsNan) {
  PackedBatch packed({1, 1}, 3, 50, 2, 2);
  packed.labels[0] = 0, packed.labels[1] = 1;
  OpHarness h(packed.batch, 4);
  const Node node = {cross_entropy({.classes = 2}),
                     {h.filled(2, 2, {1e30f, 0, -1e30f, -1e30f})},
                     {h.value(1, 1, DType::kF64), h.value(2, 2)}};
  double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
  loss = 0.0;
  h.forward(node);
  EXPECT_NEAR(loss, std::log(2.0), 1e-12);
  h.tensor(node.inputs[0]).f32()[1] = NAN;
  h.forward(node);
  EXPECT_TRUE(std::isnan(loss));
}

}  // namespace
}  // namespace snug
