#include "ops/cross_entropy.h"

#include "ops/op_test_util.h"

namespace snug {
namespace {

// A row's label and what it counts.
struct Row {
  int32_t label;
  double weight = 1.0;
};

// What -log p is weighted with.
double wanted(size_t c, const Row& row, size_t classes, double smoothing) {
  return (c == size_t(row.label) ? 1.0 - smoothing : 0.0) + smoothing / double(classes);
}

double reference_loss(const std::vector<Row>& rows, const Doubles& logits, double smoothing,
                      double scale) {
  const size_t classes = logits.size() / rows.size();
  double loss = 0.0;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].label < 0) continue;
    double sum = 0.0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(logits[r * classes + c]);
    for (size_t c = 0; c < classes; ++c) {
      loss += scale * rows[r].weight * wanted(c, rows[r], classes, smoothing) *
              (std::log(sum) - logits[r * classes + c]);
    }
  }
  return loss;
}

Doubles reference_gradient(const std::vector<Row>& rows, const Doubles& logits, double smoothing,
                           double scale) {
  const size_t classes = logits.size() / rows.size();
  Doubles d(logits.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].label < 0) continue;
    double sum = 0.0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(logits[r * classes + c]);
    for (size_t c = 0; c < classes; ++c) {
      d[r * classes + c] =
          scale * rows[r].weight *
          (std::exp(logits[r * classes + c]) / sum - wanted(c, rows[r], classes, smoothing));
    }
  }
  return d;
}

std::vector<Row> rows_of(const PackedBatch& packed) {
  std::vector<Row> rows;
  for (const int32_t label : packed.labels) rows.push_back({label});
  return rows;
}

// Runs the op, which adds to a loss, with and without gradient.
void check(const Batch& batch, const CrossEntropySpec& spec, const std::vector<Row>& rows) {
  const auto count = int64_t(rows.size());
  OpHarness h(batch, 4);
  h.step.loss_scale = 0.125f;
  const Node node = {cross_entropy(spec),
                     {h.random(count, spec.classes, 3.0)},
                     {h.value(1, 1, DType::kF64), h.value(count, spec.classes)}};
  double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
  loss = 5.0;
  h.forward(node);
  const Doubles logits = h.doubles(node.inputs[0]);
  // The op works in fp64 on the same logits; only its gradient is rounded to fp32.
  const double expected = reference_loss(rows, logits, spec.smoothing, 0.125),
               tolerance = 1e-12 * (1.0 + expected);
  EXPECT_NEAR(loss, 5.0 + expected, tolerance);
  double most = 1.0;
  for (const Row& row : rows) most = std::max(most, row.weight);
  EXPECT_TRUE(close("dlogits", h.doubles(node.outputs[1]),
                    reference_gradient(rows, logits, spec.smoothing, 0.125), 0.125 * kEps * most,
                    4));
  h.forward({node.op, node.inputs, {node.outputs[0], kNoValue}});
  EXPECT_NEAR(loss, 5.0 + 2.0 * expected, 2.0 * tolerance);
}

TEST(CrossEntropy, MatchesReferenceAndAccumulates) {
  for (int classes : {1, 2, 3, 17, 1000}) {
    const PackedBatch packed(std::vector<int>(11, 1), 3, 50, 2, classes);
    for (const float smoothing : {0.0f, 0.1f, 1.0f}) {
      check(packed.batch, {.classes = classes, .smoothing = smoothing}, rows_of(packed));
    }
  }
}

TEST(CrossEntropy, WeighsSequences) {
  PackedBatch packed(std::vector<int>(11, 1), 3, 50, 2, 3);
  std::vector<Row> rows = rows_of(packed);
  std::vector<int32_t> words;
  for (size_t s = 0; s < rows.size(); ++s) {
    const float weight = 0.25f * float(s);
    rows[s].weight = weight;
    words.insert(words.end(), {rows[s].label, std::bit_cast<int32_t>(weight)});
  }
  packed.set_labels(words);
  check(packed.batch, {.classes = 3, .weighted = true}, rows);
  check(packed.batch, {.classes = 3, .smoothing = 0.2f, .weighted = true}, rows);
}

TEST(CrossEntropy, TakesTheLabelsOfTargets) {
  PackedBatch packed({4, 1, 9}, 3, 50, 2, 3);
  const std::vector<int32_t> rows = {0, 2, 3, 4, 9, 13}, ids = {2, 0, -1, 1, 1, 0};
  packed.batch.dims.targets = int64_t(rows.size());
  packed.batch.target_rows = rows.data(), packed.batch.target_ids = ids.data();
  std::vector<Row> expected;
  for (const int32_t id : ids) expected.push_back({id});
  check(packed.batch, {.classes = 3, .rows = Rows::kTargets}, expected);
  check(packed.batch, {.classes = 3, .rows = Rows::kTargets, .smoothing = 0.1f}, expected);
}

TEST(CrossEntropy, WeighsTargetsByTheirClass) {
  PackedBatch packed({4, 1, 9}, 3, 50, 2, 3);
  const std::vector<int32_t> rows = {0, 2, 3, 4, 9, 13}, ids = {2, 0, -1, 1, 1, 0};
  const float weights[] = {0.5f, 0.0f, 3.0f};
  packed.batch.dims.targets = int64_t(rows.size());
  packed.batch.target_rows = rows.data(), packed.batch.target_ids = ids.data();
  std::vector<int32_t> words;
  for (int sequence = 0; sequence < 3; ++sequence) {
    words.push_back(-1);
    // Which sequence a target is of decides whose weights count.
    for (const float weight : weights) {
      words.push_back(std::bit_cast<int32_t>(weight * float(1 + sequence)));
    }
  }
  packed.set_labels(words);
  std::vector<Row> expected;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int sequence = rows[i] < 4 ? 1 : rows[i] < 5 ? 2 : 3;
    expected.push_back({ids[i], ids[i] < 0 ? 0.0 : double(weights[ids[i]]) * sequence});
  }
  check(packed.batch, {.classes = 3, .rows = Rows::kTargets, .weighted = true}, expected);
  check(packed.batch, {.classes = 3, .rows = Rows::kTargets, .smoothing = 0.1f, .weighted = true},
        expected);
}

TEST(CrossEntropy, AddsNothingWithoutTargets) {
  const PackedBatch packed({3}, 3);
  OpHarness h(packed.batch, 4);
  const Node node = {cross_entropy({.classes = 3, .rows = Rows::kTargets}),
                     {h.value(0, 3)},
                     {h.value(1, 1, DType::kF64), h.value(0, 3)}};
  double& loss = *static_cast<double*>(h.tensor(node.outputs[0]).data);
  loss = 5.0;
  h.forward(node);
  EXPECT_EQ(loss, 5.0);
}

TEST(CrossEntropy, ReferenceGradientIsADerivative) {
  const PackedBatch packed({1, 1, 1, 1, 1}, 5);
  OpHarness h(packed.batch, 6);
  const Doubles logits = h.doubles(h.random(5, 3));
  std::vector<Row> rows = rows_of(packed);
  rows[1].weight = 3.0;
  for (const double smoothing : {0.0, 0.3}) {
    const auto f = [&](const std::vector<Doubles>& in) {
      return reference_loss(rows, in[0], smoothing, 1.0);
    };
    EXPECT_TRUE(is_derivative(f, {logits}, {reference_gradient(rows, logits, smoothing, 1.0)}, 7));
  }
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
