#include "ops/squared_error.h"

#include "ops/op_test_util.h"

namespace snug {
namespace {

double reference_loss(const Doubles& y, const std::vector<float>& labels, size_t numbers,
                      double scale) {
  double loss = 0.0;
  for (size_t i = 0; i < y.size(); ++i) {
    if (!std::isnan(labels[i])) {
      loss += scale / double(numbers) * (y[i] - labels[i]) * (y[i] - labels[i]);
    }
  }
  return loss;
}

Doubles reference_gradient(const Doubles& y, const std::vector<float>& labels, size_t numbers,
                           double scale) {
  Doubles d;
  for (size_t i = 0; i < y.size(); ++i) {
    d.push_back(std::isnan(labels[i]) ? 0.0 : 2.0 * scale / double(numbers) * (y[i] - labels[i]));
  }
  return d;
}

// Numbers by chance, some of them not known.
std::vector<float> random_labels(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(2.0f, 3.0f);
  std::vector<float> labels;
  for (size_t i = 0; i < count; ++i) labels.push_back(i % 5 == 3 ? NAN : normal(random));
  return labels;
}

void set_labels(PackedBatch& packed, const std::vector<float>& labels) {
  std::vector<int32_t> words;
  for (const float label : labels) words.push_back(std::bit_cast<int32_t>(label));
  packed.set_labels(words);
}

TEST(SquaredError, MatchesReferenceAndAccumulates) {
  for (size_t numbers : {1, 2, 3, 17}) {
    for (const float scale : {1.0f, 0.3f}) {
      PackedBatch packed(std::vector<int>(11, 1), 3);
      const std::vector<float> labels = random_labels(11 * numbers, numbers);
      set_labels(packed, labels);
      OpHarness h(packed.batch, 4);
      h.step.loss_scale = scale;
      const auto cols = int64_t(numbers);
      const Node node = {squared_error({cols}),
                         {h.random(11, cols)},
                         {h.value(1, 1, DType::kF64), h.value(11, cols)}};
      double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
      loss = 5.0;
      h.forward(node);
      const Doubles y = h.doubles(node.inputs[0]),
                    d = reference_gradient(y, labels, numbers, scale);
      const double expected = reference_loss(y, labels, numbers, scale);
      EXPECT_NEAR(loss, 5.0 + expected, 1e-12 * (1.0 + expected));
      EXPECT_TRUE(close("dy", h.doubles(node.outputs[1]), d, kEps * largest(d), 4));
      h.forward({node.op, node.inputs, {node.outputs[0], kNoValue}});
      EXPECT_NEAR(loss, 5.0 + 2.0 * expected, 1e-12 * (1.0 + expected));
    }
  }
}

TEST(SquaredError, ReferenceGradientIsADerivative) {
  const PackedBatch packed({1, 1, 1}, 5);
  OpHarness h(packed.batch, 6);
  const Doubles y = h.doubles(h.random(3, 4));
  const std::vector<float> labels = random_labels(12, 1);
  const auto f = [&](const std::vector<Doubles>& in) {
    return reference_loss(in[0], labels, 4, 1.0);
  };
  EXPECT_TRUE(is_derivative(f, {y}, {reference_gradient(y, labels, 4, 1.0)}, 7));
}

TEST(SquaredError, ShowsNan) {
  PackedBatch packed({1, 1}, 3);
  set_labels(packed, {1.0f, NAN});
  OpHarness h(packed.batch, 4);
  const Node node = {squared_error({1}),
                     {h.filled(2, 1, {1.0f, NAN})},
                     {h.value(1, 1, DType::kF64), h.value(2, 1)}};
  double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
  loss = 0.0;
  h.forward(node);
  EXPECT_EQ(loss, 0.0) << "what has no label does not count";
  h.tensor(node.inputs[0]).f32()[0] = NAN;
  h.forward(node);
  EXPECT_TRUE(std::isnan(loss));
}

}  // namespace
}  // namespace snug
