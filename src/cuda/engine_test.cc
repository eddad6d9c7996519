// Whole training steps on the device: against the golden file of PyTorch, against the CPU with dropout, and against
// themselves under other plans.
#include "cuda/engine.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "core/file.h"
#include "core/json.h"
#include "core/threads.h"
#include "cuda/cuda_test_util.h"
#include "data/batch_builder.h"
#include "model/config.h"
#include "model/distilled.h"
#include "model/weight_files.h"
#include "model/quantized_weights.h"
#include "model/weights.h"
#include "runtime/cpu_engine.h"

namespace snug::cuda {
namespace {

struct Variant {
  int64_t capacity = 0;
  Recomputation recompute{};
  DType compute = DType::kF32;
  int64_t head_chunk = 256;  // of a language model
  bool converts = false;
  Optimizer optimizer = Optimizer::kAdamW;
  Offload offload = Offload::kNone;
  LossOptions loss{};
  bool activations_outside = false;
  int kept_layers = 0;
};

// The first so many layers, and the embeddings.
Recomputation whole(size_t layers) { return Recomputation(layers + 1, Parts::all()); }

ModelConfig small_config(Family family = Family::kBert) {
  ModelConfig config = default_config(family);
  config.vocab_size = 500;
  config.hidden_size = 128;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.intermediate_size = 256;
  config.max_position_embeddings = 96;
  if (family == Family::kRoberta) config.max_position_embeddings = 98, config.type_vocab_size = 2;  // its positions begin at 2
  config.hidden_dropout = config.attention_dropout = 0.1;
  config.initializer_range = 0.1;
  config.labels = {"a", "b", "c"};
  return config;
}

bool is_language(const Model& model) { return model.head() == Head::kCausalLm; }
bool has_targets(const Model& model) { return is_language(model) || model.head() == Head::kTagger; }

constexpr int64_t kBatch = 12, kLongest = 96, kWhole = kBatch * kLongest;

Plan plan_for(const Model& model, const Variant& variant, DeviceKind kind) {
  PlanRequest request;
  request.model = &model;
  request.graph.compute = variant.compute;
  request.graph.loss = variant.loss;
  request.graph.kept_layers = variant.kept_layers;
  request.optimizer = variant.optimizer;
  request.workload = {.batch_size = kBatch, .longest = kLongest, .step_tokens = kBatch * kLongest};
  request.workload.label_words = label_words(model.config(), model.head(), variant.loss);
  if (has_targets(model)) request.workload.target_rule = TargetRule::kEveryToken;
  request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
  request.budget_bytes = uint64_t{1} << 40;
  request.device = {.kind = kind, .threads = num_threads()};
  if (kind == DeviceKind::kCuda) complete_for_gpu(request, 0);
  request.pinned_capacity = variant.capacity;
  request.pinned_choice = {variant.recompute, is_language(model) ? variant.head_chunk : 0, variant.converts, variant.offload,
                           variant.activations_outside};
  return make_plan(request);
}

void load(Engine& engine, const Model& model) {
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    std::vector<float> values(size_t(model.parameters()[i].size()));
    const Parameter& parameter = model.parameters()[i];
    initialize(parameter, 0, values, {.seed = 3, .initializer_range = 0.1});
    const Block block = engine.weight(i);
    if (!parameter.quantized) {
      block.write(0, std::as_bytes(std::span(values)));
      continue;
    }
    const auto read = [&](uint64_t first, std::span<float> to) { std::copy_n(values.begin() + ptrdiff_t(first), to.size(), to.begin()); };
    const int64_t inputs = parameter.inputs(), channels = parameter.size() / inputs;
    quantize_matrix({channels, inputs, parameter.is_in_out, read}, [&](const QuantizedChannels& some) {
      block.write(size_t(some.first * inputs), std::as_bytes(some.values));
      block.write(parameter.scales_offset() + size_t(some.first) * sizeof(float), std::as_bytes(some.scales));
    });
  }
  engine.weights_changed();
}

struct MicroBatch {
  BatchBuilder rows;
  std::vector<int32_t> labels;

  Batch view() const {
    Batch batch = rows.view();
    batch.labels = labels.data();
    batch.dims.label_words = int64_t(labels.size()) / batch.dims.sequences;
    return batch;
  }
};

// A label for a text of so many tokens.
std::vector<int32_t> random_label(const Model& model, size_t tokens, const LossOptions& loss, std::mt19937& random) {
  const auto number = [&] { return std::bit_cast<int32_t>(float(random() % 1000) / 250.0f); };
  if (model.head() == Head::kSpans) return {int32_t(random() % tokens), int32_t(random() % tokens)};
  const bool one = model.head() != Head::kClassifier || model.config().problem_type() == Problem::kOneLabel;
  std::vector<int32_t> words(size_t(label_words(model.config(), model.head(), loss)));
  for (int32_t& word : words) word = one || model.config().problem_type() == Problem::kManyLabels ? int32_t(random() % 3) : number();
  for (size_t i = 1; loss.weighted && i < words.size(); ++i) words[i] = number();
  return words;
}

// Step s of a made-up data set: lengths from 1 to the longest, packed by the capacity.
std::vector<MicroBatch> step_data(const Model& model, int s, int64_t capacity, const LossOptions& loss = {}) {
  std::mt19937 random(unsigned(s) + 100);
  std::vector<MicroBatch> packed(1);
  for (int64_t i = 0; i < kBatch; ++i) {
    std::vector<int32_t> ids(i == 0 ? 1 : i == 1 ? kLongest : 1 + random() % kLongest), types(ids.size());
    for (int32_t& id : ids) id = int32_t(1 + random() % 499);
    for (size_t t = ids.size() / 2; t < ids.size(); ++t) types[t] = 1;
    if (packed.back().rows.dims().tokens + int64_t(ids.size()) > capacity) packed.emplace_back();
    packed.back().rows.add(ids, types, -1, uint64_t(s * kBatch + i));
    const std::vector<int32_t> words = random_label(model, ids.size(), loss, random);
    packed.back().labels.insert(packed.back().labels.end(), words.begin(), words.end());
    if (is_language(model)) packed.back().rows.predict_next_tokens();
    if (model.head() != Head::kTagger) continue;
    for (int32_t t = 0; t < int32_t(ids.size()); t += 1 + int32_t(random() % 3)) {
      const int32_t tag = int32_t(random() % 3);
      packed.back().rows.predict({&t, 1}, {&tag, 1});
    }
  }
  return packed;
}

// What the loss of a step is divided by.
double count_targets(const std::vector<MicroBatch>& data, const Model& model, const LossOptions& loss) {
  double count = 0;
  for (const MicroBatch& micro : data) {
    const Batch batch = micro.view();
    const int64_t targets = has_targets(model) ? batch.dims.targets : batch.dims.sequences;
    for (int64_t t = 0; t < targets; ++t) {
      int64_t place = 2 * t + 1;
      if (has_targets(model)) place = batch.row_of[batch.target_rows[t]] * batch.dims.label_words + 1 + batch.target_ids[t];
      count += loss.weighted ? double(std::bit_cast<float>(batch.labels[place])) : 1.0;
    }
  }
  return count;
}

struct Curve {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

// What the layers whose output is kept make of a micro-batch, given to the step that follows.
void give_states(Engine& engine, const Batch& batch) {
  const auto made = engine.run_prefix(batch);
  const std::vector<std::byte> states(made.begin(), made.end());
  const std::span<std::byte> to = engine.given_states(batch.dims);
  ASSERT_EQ(to.size(), states.size());
  std::ranges::copy(states, to.begin());
}

Curve train(Engine& engine, const Model& model, const Variant& variant, int steps) {
  load(engine, model);
  Curve curve;
  for (int s = 0; s < steps; ++s) {
    const auto data = step_data(model, s, variant.capacity, variant.loss);
    engine.begin(count_targets(data, model, variant.loss));
    for (const MicroBatch& micro : data) {
      if (variant.kept_layers > 0) give_states(engine, micro.view());
      engine.accumulate(micro.view());
    }
    engine.update({.learning_rate = 1e-3, .weight_decay = 0.01, .step = s + 1, .seed = 5}, 1.0);
    const StepResult result = engine.finish();
    EXPECT_TRUE(result.applied);
    curve.losses.push_back(result.loss);
    curve.norms.push_back(result.gradient_norm);
  }
  const Block weights = engine.region(Region::kWeights);
  curve.weights.resize(weights.bytes / sizeof(float));
  weights.read(0, std::as_writable_bytes(std::span(curve.weights)));
  return curve;
}

class CudaEngineTest : public testing::Test {
 protected:
  Curve on_gpu(const Variant& variant, int steps = 10) {
    const Gpu gpu("cuda");
    Products products(gpu, cache_, false);
    const Plan plan = plan_for(*model_, variant, DeviceKind::kCuda);
    CudaEngine engine(*model_, plan, /*seed=*/5, gpu, products);
    return train(engine, *model_, variant, steps);
  }
  Curve on_cpu(int steps = 10, Optimizer optimizer = Optimizer::kAdamW, const LossOptions& loss = {}) {
    const Variant variant{.capacity = kWhole, .optimizer = optimizer, .loss = loss};
    const Plan plan = plan_for(*model_, variant, DeviceKind::kCpu);
    CpuEngine engine(*model_, plan, /*seed=*/5);
    return train(engine, *model_, variant, steps);
  }
  static void expect_close(const Curve& a, const Curve& b, double tolerance) {
    for (size_t s = 0; s < a.losses.size(); ++s) {
      EXPECT_NEAR(a.losses[s], b.losses[s], tolerance * std::abs(b.losses[s])) << "loss of step " << s;
      EXPECT_NEAR(a.norms[s], b.norms[s], 20 * tolerance * b.norms[s]) << "gradient norm of step " << s;
    }
  }

  std::unique_ptr<Model> model_ = make_model(small_config(), Head::kClassifier);
  // One set of algorithms for all: what is compared bit for bit must not depend on timings.
  std::filesystem::path cache_ = testing::TempDir() + "snug-engine-test";
};

TEST_F(CudaEngineTest, TenLossesAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
  expect_close(on_gpu({kWhole, {}, DType::kBF16}), cpu, 2e-2);
  expect_close(on_gpu({kWhole, {}, DType::kF16}), cpu, 1e-2);
}

// Where a number is rounded to a few bits, the last bit of what goes in decides: curves part by what such a step is worth.
// No token types, a head with ReLU, dropout in fewer places.
TEST_F(CudaEngineTest, DistilBertAgreesWithTheCpu) {
  SNUG_NEEDS_GPU();
  model_ = make_model(small_config(Family::kDistilBert), Head::kClassifier);
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
  // One step alone: AdamW's first update goes by signs, and behind ReLU bf16 decides whether a unit has any gradient.
  expect_close(on_gpu({kWhole, {}, DType::kBF16}, 1), cpu, 2e-2);
}

TEST_F(CudaEngineTest, EveryOptimizerAgreesWithTheCpu) {
  SNUG_NEEDS_GPU();
  for (const auto& [optimizer, tolerance] :
       {std::pair{Optimizer::kAdamW8Bit, 5e-3}, {Optimizer::kAdamWBf16, 2e-2}, {Optimizer::kAdafactor, 1e-3}, {Optimizer::kSgd, 1e-4},
        {Optimizer::kSgdMomentum, 1e-4}}) {
    SCOPED_TRACE(optimizer_name(optimizer));
    const Curve cpu = on_cpu(10, optimizer);
    const Variant exact{.capacity = kWhole, .compute = DType::kF32, .optimizer = optimizer};
    const Variant half{.capacity = 300, .recompute = whole(1), .compute = DType::kBF16, .optimizer = optimizer};
    expect_close(on_gpu(exact), cpu, tolerance);
    const Curve first = on_gpu(half), second = on_gpu(half);
    expect_close(first, cpu, 3e-2);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.weights, second.weights);
  }
}

// Rounding to 127 steps takes values that differ in their last bit to one step or the next, so less agrees than in fp32.
TEST_F(CudaEngineTest, LossesOnQuantizedLayersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Tuning frozen{.freeze = {"layers.1-2"}, .lora = {}, .quantize = true};
  const Tuning adapted{.freeze = {}, .lora = {.rank = 4, .targets = {"all-linear"}}, .quantize = true};
  for (const Tuning& tuning : {frozen, adapted}) {
    SCOPED_TRACE(tuning.lora.rank);
    model_ = make_model(small_config(), Head::kClassifier, tuning);
    const Curve cpu = on_cpu();
    expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-2);
    expect_close(on_gpu({300, whole(1), DType::kBF16}), cpu, 3e-2);
    const Curve plain = on_gpu({kWhole, {}, DType::kF16});
    expect_close(plain, cpu, 2e-2);
    EXPECT_EQ(on_gpu({kWhole, whole(3), DType::kF16}).losses, plain.losses) << "recomputation gives the same bits";
    EXPECT_EQ(on_gpu({kWhole, Recomputation(4, {Part::kActivations}), DType::kF16}).losses, plain.losses);
  }
}

TEST_F(CudaEngineTest, TwoRunsOfOnePlanAreBitEqual) {
  SNUG_NEEDS_GPU();
  for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Curve first = on_gpu({300, whole(1), compute}), second = on_gpu({300, whole(1), compute});
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.weights, second.weights);
  }
}

TEST_F(CudaEngineTest, OtherPlansAgreeToRounding) {
  SNUG_NEEDS_GPU();
  for (const auto& [compute, tolerance] : {std::pair{DType::kF32, 2e-5}, {DType::kBF16, 1e-2}, {DType::kF16, 2e-3}}) {
    const Curve plain = on_gpu({kWhole, {}, compute});
    expect_close(on_gpu({kLongest, {}, compute}), plain, tolerance);
    for (const PartName& known : kPartNames) {
      const Curve again = on_gpu({kWhole, Recomputation(4, {known.part}), compute});
      EXPECT_EQ(again.losses, plain.losses) << known.name << " made again have the same bits";
      EXPECT_EQ(again.weights, plain.weights) << known.name;
    }
    EXPECT_EQ(on_gpu({kWhole, whole(3), compute}).losses, plain.losses) << "recomputation gives the same bits";
  }
}

struct HeadCase {
  Family family;
  Head head;
  Problem problem = Problem::kOneLabel;
  LossOptions loss{};
  Tuning tuning{};
};

// Tags, answers, many labels, numbers; smoothed and weighted labels; beside adapters.
TEST_F(CudaEngineTest, TenLossesOfEveryHeadAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Tuning adapters{.freeze = {}, .lora = {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = {}}};
  for (const HeadCase& c :
       {HeadCase{Family::kBert, Head::kTagger}, {Family::kRoberta, Head::kTagger, Problem::kOneLabel, {.label_smoothing = 0.1f}},
        {Family::kBert, Head::kTagger, Problem::kOneLabel, {}, adapters}, {Family::kGpt2, Head::kTagger},
        {Family::kBert, Head::kTagger, Problem::kOneLabel, {.weighted = true}}, {Family::kBert, Head::kSpans},
        {Family::kRoberta, Head::kSpans, Problem::kOneLabel, {}, adapters}, {Family::kBert, Head::kClassifier, Problem::kManyLabels},
        {Family::kRoberta, Head::kClassifier, Problem::kNumbers}, {Family::kGpt2, Head::kClassifier},
        {Family::kBert, Head::kClassifier, Problem::kOneLabel, {.label_smoothing = 0.1f, .weighted = true}}}) {
    SCOPED_TRACE(testing::Message() << architecture(c.family, c.head) << ", problem " << int(c.problem));
    ModelConfig config = small_config(c.family);
    config.problem = c.problem;
    model_ = make_model(config, c.head, c.tuning);
    const auto variant = [&](int64_t capacity, Recomputation recompute, DType compute) {
      return Variant{.capacity = capacity, .recompute = std::move(recompute), .compute = compute, .loss = c.loss};
    };
    const Curve cpu = on_cpu(10, Optimizer::kAdamW, c.loss);
    const Curve plain = on_gpu(variant(kWhole, {}, DType::kF32));
    expect_close(plain, cpu, 1e-4);
    expect_close(on_gpu(variant(300, whole(2), DType::kF32)), cpu, 1e-4);
    EXPECT_EQ(on_gpu(variant(kWhole, whole(3), DType::kF32)).losses, plain.losses) << "recomputation gives the same bits";
    const Curve half = on_gpu(variant(300, {}, DType::kBF16)), again = on_gpu(variant(300, {}, DType::kBF16));
    const bool squares = c.problem == Problem::kNumbers;  // an error of the number counts twice
    expect_close(half, cpu, squares ? 6e-2 : 3e-2);
    EXPECT_EQ(half.losses, again.losses);
    EXPECT_EQ(half.weights, again.weights);
    // The gradient of a large error times the first loss scale is more than fp16 holds: that step would be skipped.
    if (!squares) expect_close(on_gpu(variant(kWhole, {}, DType::kF16)), cpu, 1e-2);
  }
}

// All tokens go on behind two layers; behind all of them the first or the last of each text. One bucket or several: rows
// beyond a micro-batch's are zero.
TEST_F(CudaEngineTest, KeptLayersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const std::vector<std::string> two = {"embeddings", "layers.0-1"}, all = {"embeddings", "layers.0-2"}, head = {"all-but-head"};
  for (const auto& [family, kind, freeze] : {std::tuple{Family::kBert, Head::kClassifier, two}, {Family::kBert, Head::kClassifier, head},
                                             {Family::kGpt2, Head::kClassifier, all}, {Family::kGpt2, Head::kCausalLm, two},
                                             {Family::kBert, Head::kTagger, head}, {Family::kBert, Head::kSpans, two}}) {
    ModelConfig config = small_config(family);
    config.embedding_dropout = config.hidden_dropout = config.attention_dropout = 0;
    model_ = make_model(config, kind, {.freeze = freeze, .lora = {}});
    const int layers = frozen_layers(*model_);
    SCOPED_TRACE(testing::Message() << architecture(family, kind) << ", " << layers << " layers");
    const auto variant = [&](int64_t capacity, DType compute, int kept) {
      return Variant{.capacity = capacity, .compute = compute, .kept_layers = kept};
    };
    const Curve cpu = on_cpu();
    expect_close(on_gpu(variant(kWhole, DType::kF32, layers)), cpu, 1e-4);
    expect_close(on_gpu(variant(300, DType::kF32, layers)), cpu, 1e-4);
    for (const DType compute : {DType::kBF16, DType::kF16}) {
      const Curve through = on_gpu(variant(300, compute, 0)), kept = on_gpu(variant(300, compute, layers)),
                  again = on_gpu(variant(300, compute, layers));
      expect_close(kept, through, 1e-2);
      EXPECT_EQ(kept.losses, again.losses);
      EXPECT_EQ(kept.weights, again.weights);
    }
  }
}

TEST_F(CudaEngineTest, FrozenLayersAndAdaptersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  for (const Tuning& tuning : {Tuning{.freeze = {"embeddings", "layers.0-1"}, .lora = {}},
                               Tuning{.freeze = {}, .lora = {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = {"query", "value", "dense"}}}}) {
    model_ = make_model(small_config(), Head::kClassifier, tuning);
    const Curve cpu = on_cpu();
    expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
    expect_close(on_gpu({300, whole(2), DType::kF32}), cpu, 1e-4);
    expect_close(on_gpu({kWhole, {}, DType::kBF16}), cpu, 2e-2);
  }
}

// A word table that is the head's matrix too gets its gradient twice in a micro-batch.
TEST_F(CudaEngineTest, GradientsOfTiedTablesOnTheHostGiveTheSameBits) {
  SNUG_NEEDS_GPU();
  model_ = make_model(small_config(Family::kGpt2), Head::kCausalLm);
  for (const int64_t capacity : {kWhole, int64_t{300}}) {
    const Curve inside = on_gpu({.capacity = capacity, .compute = DType::kF32});
    const Curve outside = on_gpu({.capacity = capacity, .compute = DType::kF32, .offload = Offload::kGradients});
    EXPECT_EQ(inside.losses, outside.losses) << capacity;
    EXPECT_EQ(inside.weights, outside.weights) << capacity;
  }
}

// Where state and gradients lie changes nothing: the same kernels read them over the bus.
TEST_F(CudaEngineTest, StateAndGradientsOnTheHostGiveTheSameBits) {
  SNUG_NEEDS_GPU();
  for (const Optimizer optimizer : {Optimizer::kAdamW, Optimizer::kAdamW8Bit, Optimizer::kAdafactor}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const int64_t capacity : {kWhole, int64_t{300}}) {
        SCOPED_TRACE(testing::Message() << optimizer_name(optimizer) << ", " << dtype_name(compute) << ", " << capacity << " tokens");
        const auto variant = [&](Offload offload) {
          return Variant{.capacity = capacity, .compute = compute, .optimizer = optimizer, .offload = offload};
        };
        const Curve inside = on_gpu(variant(Offload::kNone));
        const Curve state = on_gpu(variant(Offload::kState)), gradients = on_gpu(variant(Offload::kGradients));
        EXPECT_EQ(inside.losses, state.losses);
        EXPECT_EQ(inside.weights, state.weights);
        EXPECT_EQ(inside.losses, gradients.losses);
        EXPECT_EQ(inside.weights, gradients.weights);
      }
    }
  }
}

// What recomputed layers keep comes back as it was, for every bucket and micro-batch, beside whatever else lies on the host.
TEST_F(CudaEngineTest, ActivationsOnTheHostGiveTheSameBits) {
  SNUG_NEEDS_GPU();
  // The last layer's backward reads what two layers have made, and these stay.
  struct Case {
    DType compute;
    int64_t capacity;
    size_t layers, stowed;
  };
  for (const auto& [family, head] : {std::pair{Family::kBert, Head::kClassifier}, {Family::kGpt2, Head::kCausalLm}}) {
    ModelConfig config = small_config(family);
    config.num_hidden_layers = 6;
    model_ = make_model(config, head);
    for (const Case& c : {Case{DType::kF32, 300, 6, 4}, {DType::kBF16, kWhole, 6, 4}, {DType::kBF16, 300, 4, 3}}) {
      SCOPED_TRACE(testing::Message() << architecture(family, head) << ", " << dtype_name(c.compute) << ", " << c.capacity << " tokens, "
                                      << c.layers << " layers");
      Variant variant{.capacity = c.capacity, .recompute = whole(c.layers), .compute = c.compute};
      const Curve inside = on_gpu(variant, 5);
      variant.activations_outside = true;
      const Plan plan = plan_for(*model_, variant, DeviceKind::kCuda);
      EXPECT_EQ(plan.layout.stowed.size(), c.stowed);
      EXPECT_GE(plan.layout.outside_bytes, c.stowed * size_t(c.capacity * 128) * dtype_bytes(c.compute));
      for (const Offload offload : {Offload::kNone, Offload::kGradients}) {
        SCOPED_TRACE(testing::Message() << "offload " << int(offload));
        variant.offload = offload;
        const Curve outside = on_gpu(variant, 5);
        EXPECT_EQ(inside.losses, outside.losses);
        EXPECT_EQ(inside.weights, outside.weights);
      }
    }
  }
}

// Prediction and embedding have a plan of their own, in which the factors of products exist in the compute type alone.
TEST_F(CudaEngineTest, ScoresAndEmbeddingsAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  for (const Purpose purpose : {Purpose::kScoring, Purpose::kEmbedding}) {
    const auto model = make_model(small_config(), purpose == Purpose::kScoring ? Head::kClassifier : Head::kNone);
    const auto results = [&](DeviceKind kind, DType compute) {
      PlanRequest request;
      request.model = model.get();
      request.graph = {.purpose = purpose, .compute = compute};
      request.workload = {.batch_size = kBatch, .longest = kLongest, .step_tokens = kWhole};
      request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
      request.budget_bytes = uint64_t{1} << 40;
      request.device = {.kind = DeviceKind::kCpu, .threads = num_threads()};
      if (kind == DeviceKind::kCuda) complete_for_gpu(request, 0);
      const Plan plan = make_plan(request);
      std::unique_ptr<Engine> engine;
      if (kind == DeviceKind::kCuda) engine = std::make_unique<CudaEngine>(*model, plan, 5, gpu, products);
      else engine = std::make_unique<CpuEngine>(*model, plan, 5);
      load(*engine, *model);
      engine->score(step_data(*model, 0, kWhole)[0].view());
      const std::span<const float> values = engine->result();
      return std::vector<float>(values.begin(), values.end());
    };
    const std::vector<float> expected = results(DeviceKind::kCpu, DType::kF32);
    double largest = 0;
    for (const float x : expected) largest = std::max<double>(largest, std::abs(x));
    for (const auto& [compute, tolerance] : {std::pair{DType::kF32, 1e-4}, {DType::kBF16, 5e-2}, {DType::kF16, 1e-2}}) {
      const std::vector<float> got = results(DeviceKind::kCuda, compute);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance * largest) << i;
    }
  }
}

TEST_F(CudaEngineTest, MemoryStaysAsItIsAfterTheStart) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  for (const bool activations_outside : {false, true}) {
    const Variant variant{.capacity = 300, .recompute = whole(3), .compute = DType::kBF16, .activations_outside = activations_outside};
    const Plan plan = plan_for(*model_, variant, DeviceKind::kCuda);
    CudaEngine engine(*model_, plan, /*seed=*/5, gpu, products);
    train(engine, *model_, variant, 1);
    const uint64_t before = gpu.memory().used_bytes;
    train(engine, *model_, variant, 5);
    engine.score(step_data(*model_, 0, variant.capacity)[0].view());
    engine.result();
    EXPECT_EQ(gpu.memory().used_bytes, before) << activations_outside;
  }
}

TEST_F(CudaEngineTest, ANumberThatIsNotFiniteChangesNoWeight) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  const Plan plan = plan_for(*model_, {kWhole, {}, DType::kBF16}, DeviceKind::kCuda);
  CudaEngine engine(*model_, plan, /*seed=*/5, gpu, products);
  load(engine, *model_);
  const float broken = std::numeric_limits<float>::quiet_NaN();
  engine.weight(0).write(4 * 7, std::as_bytes(std::span(&broken, 1)));  // a word that is in every batch
  std::vector<float> before(plan.layout.trained.bytes / 4), after(before.size());
  engine.region(Region::kWeights).read(0, std::as_writable_bytes(std::span(before)));
  BatchBuilder data;
  data.add(std::vector<int32_t>{0, 1, 2}, {}, 1, 0);
  engine.begin(1);
  engine.accumulate(data.view());
  engine.update({.learning_rate = 1e-3, .step = 1}, 1.0);
  EXPECT_FALSE(engine.finish().applied);
  engine.region(Region::kWeights).read(0, std::as_writable_bytes(std::span(after)));
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * 4), 0);
}

// Causal language modelling: the head in chunks, targets, weights stored [in, out], tanh GELU.
class CudaLanguageEngineTest : public CudaEngineTest {
 protected:
  CudaLanguageEngineTest() { model_ = make_model(small_config(Family::kGpt2), Head::kCausalLm); }
};

TEST_F(CudaLanguageEngineTest, TenLossesAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
  expect_close(on_gpu({kWhole, {}, DType::kBF16}), cpu, 2e-2);
  expect_close(on_gpu({kWhole, {}, DType::kF16}), cpu, 1e-2);
}

TEST_F(CudaLanguageEngineTest, LossesOnQuantizedLayersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  model_ = make_model(small_config(Family::kGpt2), Head::kCausalLm, {.freeze = {"embeddings", "layers.0-1"}, .lora = {}, .quantize = true});
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 5e-3);
  expect_close(on_gpu({kWhole, {}, DType::kBF16}), cpu, 3e-2);
}

TEST_F(CudaLanguageEngineTest, OtherPlansAgree) {
  SNUG_NEEDS_GPU();
  for (const auto& [compute, tolerance] : {std::pair{DType::kF32, 2e-5}, {DType::kBF16, 1e-2}}) {
    const Curve plain = on_gpu({kWhole, {}, compute});
    expect_close(on_gpu({kLongest, {}, compute}), plain, tolerance);
    expect_close(on_gpu({kWhole, {}, compute, 100}), plain, tolerance);
    EXPECT_EQ(on_gpu({kWhole, whole(3), compute}).losses, plain.losses) << "recomputation gives the same bits";
    // cuBLASLt's product with tanh GELU rounds the activation from a sum that is not kept.
    expect_close(on_gpu({kWhole, Recomputation(4, {Part::kActivations}), compute}), plain, tolerance);
  }
  EXPECT_EQ(on_gpu({kWhole, whole(1), DType::kBF16, 256, true}).losses, on_gpu({kWhole, whole(1), DType::kBF16}).losses)
      << "so do weights that are converted when used";
}

TEST_F(CudaLanguageEngineTest, TwoRunsOfOnePlanAreBitEqual) {
  SNUG_NEEDS_GPU();
  const Curve first = on_gpu({300, whole(1), DType::kBF16}), second = on_gpu({300, whole(1), DType::kBF16});
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.weights, second.weights);
}

// Two texts, read in pieces and then written on token by token: the same tokens as on the CPU in fp32.
TEST_F(CudaLanguageEngineTest, WritesWhatTheCpuWrites) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  for (const SampleSpec& sample : {SampleSpec{}, SampleSpec{.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .repetition_penalty = 1.3f, .seed = 4}}) {
    const auto written = [&](DeviceKind kind, DType compute) {
      PlanRequest request;
      request.model = model_.get();
      request.graph = {.purpose = Purpose::kGeneration, .compute = compute, .context = kLongest, .sample = sample};
      request.workload = {.batch_size = 2, .longest = kLongest, .step_tokens = 2, .target_rule = TargetRule::kLastToken};
      request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
      request.budget_bytes = uint64_t{1} << 40;
      request.device = {.kind = DeviceKind::kCpu, .threads = num_threads()};
      if (kind == DeviceKind::kCuda) complete_for_gpu(request, 0);
      request.pinned_capacity = 16;
      const Plan plan = make_plan(request);
      std::unique_ptr<Engine> engine;
      if (kind == DeviceKind::kCuda) engine = std::make_unique<CudaEngine>(*model_, plan, 5, gpu, products);
      else engine = std::make_unique<CpuEngine>(*model_, plan, 5);
      load(*engine, *model_);
      std::vector<std::vector<int32_t>> texts = {{3, 14, 15, 92, 65, 35, 89}, {79, 32}};
      std::vector<size_t> unread(2);
      for (int step = 0; step < 60; ++step) {
        BatchBuilder batch;
        for (size_t i = 0; i < 2; ++i) {
          batch.add_to_text(std::span(texts[i]).subspan(unread[i]), int32_t(unread[i]), {.place = 1 - i, .number = int32_t(i)});
          unread[i] = texts[i].size();
        }
        engine->score(batch.view());
        const auto next = engine->result();
        for (size_t i = 0; i < 2; ++i) texts[i].push_back(int32_t(next[2 * i]));
      }
      return texts;
    };
    const auto cpu = written(DeviceKind::kCpu, DType::kF32);
    EXPECT_EQ(written(DeviceKind::kCuda, DType::kF32), cpu);
    const auto half = written(DeviceKind::kCuda, DType::kBF16);  // rounding may choose another word sooner or later
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(half[i].size(), cpu[i].size());
    EXPECT_EQ(written(DeviceKind::kCuda, DType::kBF16), half);
  }
}

// A student and a larger teacher, both in one plan.
class CudaDistilledEngineTest : public CudaEngineTest {
 protected:
  void SetUp() override { distil(Family::kBert, Head::kClassifier); }
  void distil(Family family, Head head) {
    ModelConfig teacher = small_config(family);
    teacher.hidden_size = 192;
    teacher.num_hidden_layers = 4;
    model_ = make_distilled({small_config(family), teacher}, head, {});
  }
};

TEST_F(CudaDistilledEngineTest, TenLossesAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  for (const auto& [family, head] : {std::pair{Family::kBert, Head::kClassifier}, {Family::kGpt2, Head::kCausalLm}}) {
    distil(family, head);
    const Curve cpu = on_cpu();
    expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
    expect_close(on_gpu({kWhole, {}, DType::kBF16}), cpu, 3e-2);
    expect_close(on_gpu({kWhole, {}, DType::kF16}), cpu, 1e-2);
  }
}

TEST_F(CudaDistilledEngineTest, OtherPlansAgreeToRounding) {
  SNUG_NEEDS_GPU();
  for (const auto& [family, head] : {std::pair{Family::kBert, Head::kClassifier}, {Family::kGpt2, Head::kCausalLm}}) {
    distil(family, head);
    for (const auto& [compute, tolerance] : {std::pair{DType::kF32, 2e-5}, {DType::kBF16, 1e-2}}) {
      const Curve kept = on_gpu({kWhole, {}, compute});
      expect_close(on_gpu({kLongest, {}, compute, 64}), kept, tolerance);
      EXPECT_EQ(on_gpu({kWhole, whole(3), compute}).losses, kept.losses) << "recomputation gives the same bits";
      EXPECT_EQ(on_gpu({kWhole, {}, compute, 256, compute != DType::kF32}).losses, kept.losses) << "so does converting weights";
    }
  }
}


class CudaGolden : public testing::TestWithParam<std::pair<const char*, Head>> {};

TEST_P(CudaGolden, LossesOfPyTorch) {
  SNUG_NEEDS_GPU();
  const auto folder = std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden" / GetParam().first;
  const Json steps = parse_json(read_small_file(folder / "steps.json"), "steps.json");
  const ModelConfig config = parse_config(read_small_file(folder / "config.json"), "config.json");
  const auto model = make_model(config, GetParam().second);
  PlanRequest request;
  request.model = model.get();
  request.workload = {.batch_size = 7, .longest = 40, .step_tokens = 106};
  if (model->head() != Head::kClassifier) request.workload.target_rule = TargetRule::kEveryToken;
  request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
  complete_for_gpu(request, 0);
  request.budget_bytes = uint64_t{1} << 30;
  const Plan plan = make_plan(request);
  const Gpu gpu("cuda");
  Products products(gpu, {}, false);
  CudaEngine engine(*model, plan, 1, gpu, products);
  load_weights(WeightFolder(folder), *model, [&](size_t i) { return engine.weight(i); }, {});
  engine.weights_changed();
  for (size_t s = 0; s < steps["batches"].size(); ++s) {
    BatchBuilder data;
    for (const Json& row : steps["batches"][s]) {
      data.add(row.at("ids").get<std::vector<int32_t>>(), row.at("type_ids").get<std::vector<int32_t>>(), row.value("label", -1));
      if (!row.contains("target_rows")) continue;
      data.predict(row["target_rows"].get<std::vector<int32_t>>(), row["target_ids"].get<std::vector<int32_t>>());
    }
    engine.begin(double(std::max<int64_t>(data.dims().targets, model->head() == Head::kClassifier ? data.dims().sequences : 1)));
    engine.accumulate(data.view());
    engine.update({.learning_rate = steps["learning_rate"],
                   .beta1 = steps["beta1"],
                   .beta2 = steps["beta2"],
                   .epsilon = steps["epsilon"],
                   .weight_decay = steps["weight_decay"],
                   .step = int64_t(s) + 1},
                  steps["max_grad_norm"]);
    const StepResult result = engine.finish();
    EXPECT_NEAR(result.loss, steps["losses"][s].get<double>(), 1e-5 * result.loss) << "step " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaGolden,
                         testing::Values(std::pair{"bert-tiny", Head::kClassifier}, std::pair{"roberta-tiny", Head::kClassifier},
                                         std::pair{"bert-mlm-tiny", Head::kMaskedLm}, std::pair{"distilbert-tiny", Head::kClassifier},
                                         std::pair{"distilbert-mlm-tiny", Head::kMaskedLm}, std::pair{"gpt2-tiny", Head::kCausalLm}));

}  // namespace
}  // namespace snug::cuda
