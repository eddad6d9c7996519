// Both losses with a teacher against an fp64 reference and against PyTorch.
#include "ops/distillation.h"

#include "ops/cross_entropy.h"
#include "ops/op_test_util.h"
#include "ops/vocabulary_loss.h"

namespace snug {
namespace {

constexpr Distillation kCases[] = {{1.0f, 0.0f}, {1.0f, 0.5f}, {2.0f, 0.5f}, {2.0f, 1.0f},
                                   {4.0f, 0.0f}, {4.0f, 0.9f}, {0.5f, 0.3f}};

Doubles softmax(Doubles logits, double temperature) {
  double sum = 0.0, max = *std::max_element(logits.begin(), logits.end());
  for (double& x : logits) sum += x = std::exp((x - max) / temperature);
  for (double& x : logits) x /= sum;
  return logits;
}

// The loss of one target, by its definition.
double reference_loss(const Doubles& s, const Doubles& t, size_t target, const Distillation& how) {
  const Doubles p = softmax(s, how.temperature), q = softmax(t, how.temperature);
  const double alpha = how.alpha, temperature = how.temperature;
  double divergence = 0.0;
  for (size_t i = 0; i < s.size(); ++i) divergence += q[i] * (std::log(q[i]) - std::log(p[i]));
  return (1 - alpha) * -std::log(softmax(s, 1.0)[target]) +
         alpha * temperature * temperature * divergence;
}

Doubles reference_gradient(const Doubles& s, const Doubles& t, size_t target,
                           const Distillation& how) {
  const Doubles hard = softmax(s, 1.0), p = softmax(s, how.temperature),
                q = softmax(t, how.temperature);
  const double alpha = how.alpha, temperature = how.temperature;
  Doubles d(s.size());
  for (size_t i = 0; i < s.size(); ++i) {
    d[i] = (1 - alpha) * (hard[i] - (i == target)) + alpha * temperature * (p[i] - q[i]);
  }
  return d;
}

Doubles row_of(const Doubles& values, size_t row, size_t cols) {
  return Doubles(values.begin() + ptrdiff_t(row * cols),
                 values.begin() + ptrdiff_t((row + 1) * cols));
}

double& loss_of(const OpHarness& h, const Node& node) {
  return *static_cast<double*>(h.tensor(node.outputs[0]).data);
}

TEST(Distillation, ReferenceGradientIsADerivative) {
  const PackedBatch packed({1}, 5);
  OpHarness h(packed.batch, 6);
  const Doubles s = h.doubles(h.random(1, 9)), t = h.doubles(h.random(1, 9));
  for (const Distillation& how : kCases) {
    const auto f = [&](const std::vector<Doubles>& in) { return reference_loss(in[0], t, 4, how); };
    EXPECT_TRUE(is_derivative(f, {s}, {reference_gradient(s, t, 4, how)}, 7));
  }
}

TEST(DistilledCrossEntropy, MatchesReferenceAndAccumulates) {
  for (const Distillation& how : kCases) {
    for (const int classes : {1, 2, 3, 17, 1000}) {
      const auto n = size_t(classes);
      const PackedBatch packed(std::vector<int>(11, 1), 3, 50, 2, classes);
      OpHarness h(packed.batch, 4);
      h.step.loss_scale = 0.125f;
      const Node node = {cross_entropy({.classes = classes, .distillation = how}),
                         {h.random(11, classes, 3.0), h.random(11, classes, 3.0)},
                         {h.value(1, 1, DType::kF64), h.value(11, classes)}};
      loss_of(h, node) = 5.0;
      h.forward(node);
      double loss = 5.0;
      Doubles gradient;
      for (size_t row = 0; row < 11; ++row) {
        const Doubles s = row_of(h.doubles(node.inputs[0]), row, n),
                      t = row_of(h.doubles(node.inputs[1]), row, n);
        const int label = packed.labels[row];
        if (label >= 0) loss += 0.125 * reference_loss(s, t, size_t(label), how);
        const Doubles d = label >= 0 ? reference_gradient(s, t, size_t(label), how) : Doubles(n);
        for (const double x : d) gradient.push_back(0.125 * x);
      }
      // The op works in fp64 on the same logits; only its gradient is rounded, to half an eps of at
      // most the temperature.
      EXPECT_NEAR(loss_of(h, node), loss, 1e-11);
      EXPECT_TRUE(close("dlogits", h.doubles(node.outputs[1]), gradient, 0.125 * 4.0 * kEps, 4));
    }
  }
}

TEST(DistilledCrossEntropy, WithoutAShareIsThePlainLoss) {
  const PackedBatch packed(std::vector<int>(11, 1), 3, 50, 2, 5);
  OpHarness h(packed.batch, 4);
  const ValueId logits = h.random(11, 5), teacher = h.random(11, 5);
  const Node plain = {
      cross_entropy({.classes = 5}), {logits}, {h.value(1, 1, DType::kF64), h.value(11, 5)}};
  const Node distilled = {cross_entropy({.classes = 5, .distillation = {3.0f, 0.0f}}),
                          {logits, teacher},
                          {h.value(1, 1, DType::kF64), h.value(11, 5)}};
  for (const Node& node : {plain, distilled}) loss_of(h, node) = 0.0, h.forward(node);
  EXPECT_EQ(loss_of(h, plain), loss_of(h, distilled));
  EXPECT_EQ(h.floats(plain.outputs[1]), h.floats(distilled.outputs[1]));
}

// Targets over a vocabulary, and a student and a teacher of other widths.
struct VocabularyCase {
  PackedBatch packed;
  std::vector<int32_t> target_ids;
  OpHarness h;
  int64_t targets, vocabulary, stride, hidden = 12, teacher_hidden = 20;
  std::vector<ValueId> inputs;

  VocabularyCase(int64_t targets, int64_t vocabulary, int64_t stride, bool with_bias)
      : packed({int(targets)}, 5),
        h(packed.batch, 6),
        targets(targets),
        vocabulary(vocabulary),
        stride(stride) {
    std::mt19937_64 random(7);
    for (int64_t i = 0; i < targets; ++i) {
      target_ids.push_back(int32_t(random() % uint64_t(vocabulary)));
    }
    packed.batch.dims.targets = targets;
    packed.batch.target_ids = target_ids.data();
    h.step.loss_scale = 0.25f;
    for (const int64_t width : {hidden, teacher_hidden}) {
      inputs.push_back(h.random(targets, width));
      inputs.push_back(h.random(stride, width, 0.5));
      inputs.push_back(with_bias ? h.random(1, vocabulary) : kNoValue);
    }
  }
  VocabularyCase(const VocabularyCase&) = delete;

  // Of one model; `first` is its first input.
  Doubles logits(size_t first, size_t row) {
    const auto width = size_t(h.tensor(inputs[first]).cols);
    const Doubles x = row_of(h.doubles(inputs[first]), row, width),
                  w = h.doubles(inputs[first + 1]);
    Doubles y(static_cast<size_t>(vocabulary));
    for (size_t v = 0; v < y.size(); ++v) {
      if (inputs[first + 2] != kNoValue) y[v] = h.tensor(inputs[first + 2]).f32()[v];
      for (size_t c = 0; c < width; ++c) y[v] += x[c] * w[v * width + c];
    }
    return y;
  }
  Node node(int64_t chunk, const Distillation& how, const std::vector<ValueId>& in) {
    const VocabularyLossSpec spec = {
        .chunk = chunk, .vocabulary = vocabulary, .with_gradient = true, .distillation = how};
    return {vocabulary_loss(spec), in, {h.value(1, 1, DType::kF64)}};
  }
  void run(const Node& node) {
    for (size_t i = 0; i < 3; ++i) {
      if (inputs[i] != kNoValue) h.want(inputs[i], i > 0);
    }
    h.forward(node);
    h.backward(node);
  }
};

TEST(DistilledVocabularyLoss, MatchesReferenceInAnyChunks) {
  on_each_target([] {
    for (const int64_t vocabulary : {1, 3, 17, 1030}) {
      for (const Distillation& how : kCases) {
        const int64_t chunk = how.alpha == 0.5f ? 4 : 100;
        VocabularyCase c(11, vocabulary, how.alpha == 1.0f ? vocabulary + 5 : vocabulary,
                         /*with_bias=*/how.temperature == 2.0f);
        const Node node = c.node(chunk, how, c.inputs);
        loss_of(c.h, node) = 3.0;
        c.run(node);
        const Doubles x = c.h.doubles(c.inputs[0]), w = c.h.doubles(c.inputs[1]);
        const auto hidden = size_t(c.hidden);
        Doubles dx(x.size()), dw(w.size()), db(static_cast<size_t>(vocabulary));
        double loss = 3.0;
        for (size_t r = 0; r < 11; ++r) {
          const Doubles s = c.logits(0, r), t = c.logits(3, r);
          const auto target = size_t(c.target_ids[r]);
          loss += 0.25 * reference_loss(s, t, target, how);
          const Doubles d = reference_gradient(s, t, target, how);
          for (size_t v = 0; v < d.size(); ++v) {
            db[v] += 0.25 * d[v];
            for (size_t i = 0; i < hidden; ++i) {
              dx[r * hidden + i] += 0.25 * d[v] * w[v * hidden + i];
              dw[v * hidden + i] += 0.25 * d[v] * x[r * hidden + i];
            }
          }
        }
        SCOPED_TRACE(testing::Message() << "vocabulary " << vocabulary << ", temperature "
                                        << how.temperature << ", alpha " << how.alpha);
        // Logits of about 3 round to a few eps, in the loss times T² at T 4; probabilities and sums
        // over a dozen rows follow.
        const double tolerance = 200 * kEps;
        EXPECT_NEAR(loss_of(c.h, node), loss, 4 * tolerance * 11);
        EXPECT_TRUE(close("dx", c.h.gained(c.inputs[0]), dx, tolerance, 6));
        EXPECT_TRUE(close("dw", c.h.gained(c.inputs[1]), dw, tolerance, 6));
        if (c.inputs[2] != kNoValue) {
          EXPECT_TRUE(close("db", c.h.gained(c.inputs[2]), db, tolerance, 6));
        }
      }
    }
  });
}

TEST(DistilledVocabularyLoss, WithoutAShareIsThePlainLoss) {
  VocabularyCase c(9, 1030, 1030, true);
  const Node plain = c.node(4, {}, {c.inputs[0], c.inputs[1], c.inputs[2]}),
             distilled = c.node(4, {3.0f, 0.0f}, c.inputs);
  std::vector<std::vector<float>> results;
  for (const Node& node : {plain, distilled}) {
    loss_of(c.h, node) = 0.0;
    c.run(node);
    results.push_back(c.h.floats(c.h.gradient(c.inputs[0])));
  }
  EXPECT_EQ(loss_of(c.h, plain), loss_of(c.h, distilled));
  EXPECT_EQ(results[0], results[1]);
}

TEST(DistilledVocabularyLoss, SameOnTwoThreads) {
  expect_same_on_two_threads([] {
    VocabularyCase c(40, 300, 300, true);
    const Node node = c.node(16, {}, c.inputs);
    loss_of(c.h, node) = 0.0;
    c.run(node);
    return std::vector{c.h.floats(c.h.gradient(c.inputs[0])), {float(loss_of(c.h, node))}};
  });
}

TEST(DistilledVocabularyLoss, NanShowsAndLargeLogitsDoNotOverflow) {
  for (const size_t which : {0, 3}) {
    VocabularyCase c(2, 2, 2, false);
    const Node node = c.node(2, {}, c.inputs);
    const Tensor x = c.h.tensor(c.inputs[which]);
    for (int64_t i = 0; i < x.size(); ++i) x.f32()[i] *= 1e30f;
    loss_of(c.h, node) = 0.0;
    c.run(node);
    EXPECT_TRUE(std::isfinite(loss_of(c.h, node)));
    for (const double d : c.h.doubles(c.h.gradient(c.inputs[0]))) EXPECT_TRUE(std::isfinite(d));
    x.f32()[1] = NAN;
    c.run(node);
    EXPECT_TRUE(std::isnan(loss_of(c.h, node)));
  }
}

// F.cross_entropy(s, y) * (1 - a) + F.kl_div(F.log_softmax(s / T, -1), F.softmax(t / T, -1),
// reduction="batchmean") * a * T * T of PyTorch 2 in fp64, and s.grad.
TEST(Distillation, AgreesWithPyTorch) {
  const std::vector<float> s = {0.5, -1.25, 2.0, 1.5, 0.25, -0.75},
                           t = {1.0, 0.5, -0.5, -2.0, 3.0, 0.125};
  struct Expected {
    Distillation how;
    double loss;
    Doubles gradient;
  };
  const Expected cases[] = {
      {{2.0f, 0.5f},
       1.0983046236398266,
       {-0.03641368139, -0.1063143294, 0.1427280108, 0.1673376441, -0.1835477343, 0.01621009023}},
      {{4.0f, 0.75f},
       1.7877167160109644,
       {-0.0778325263, -0.1989319286, 0.2767644549, 0.3743111319, -0.3430304541, -0.03128067779}}};
  PackedBatch packed({1, 1}, 1, 50, 2, 3);
  packed.labels = {2, 0};
  packed.batch.labels = packed.batch.target_ids = packed.labels.data();
  packed.batch.dims.targets = 2;
  for (const Expected& expected : cases) {
    OpHarness h(packed.batch, 1);
    h.step.loss_scale = 0.5f;
    const ValueId student = h.filled(2, 3, s), teacher = h.filled(2, 3, t);
    const ValueId unit = h.filled(3, 3, {1, 0, 0, 0, 1, 0, 0, 0, 1});
    const Node classes = {cross_entropy({.classes = 3, .distillation = expected.how}),
                          {student, teacher},
                          {h.value(1, 1, DType::kF64), h.value(2, 3)}};
    const Node words = {
        vocabulary_loss({.chunk = 2, .with_gradient = true, .distillation = expected.how}),
        {student, unit, kNoValue, teacher, unit, kNoValue},
        {h.value(1, 1, DType::kF64)}};
    h.want(student, false);
    loss_of(h, classes) = loss_of(h, words) = 0.0;
    h.forward(classes);
    h.forward(words);
    h.backward(words);
    EXPECT_NEAR(loss_of(h, classes), expected.loss, 1e-12);
    EXPECT_NEAR(loss_of(h, words), expected.loss, 20 * kEps);
    EXPECT_TRUE(close("dlogits", h.doubles(classes.outputs[1]), expected.gradient, kEps, 1));
    EXPECT_TRUE(close("dx", h.gained(student), expected.gradient, 4 * kEps, 1));
  }
}

}  // namespace
}  // namespace snug
