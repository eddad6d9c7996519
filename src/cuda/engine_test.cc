// Whole training steps on the device: against the golden file of PyTorch, and against the CPU with
// dropout.
#include "core/file.h"
#include "core/json.h"
#include "cuda/engine_test_util.h"
#include "model/weight_files.h"

namespace snug::cuda {
namespace {

using namespace whole_steps;

TEST_F(CudaEngineTest, TenLossesAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
  expect_close(on_gpu({kWhole, {}, half_here()}), cpu, 2e-2);
  expect_close(on_gpu({kWhole, {}, DType::kF16}), cpu, 1e-2);
}

// No token types, a head with ReLU, dropout in fewer places.
TEST_F(CudaEngineTest, DistilBertAgreesWithTheCpu) {
  SNUG_NEEDS_GPU();
  model_ = make_model(small_config(Family::kDistilBert), Head::kClassifier);
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
  // One step alone: AdamW's first update goes by signs, and behind ReLU bf16 decides whether a unit
  // has any gradient.
  expect_close(on_gpu({kWhole, {}, half_here()}, 1), cpu, 2e-2);
}

// Where a number is rounded to a few bits, the last bit of what goes in decides: curves part by
// what such a step is worth. Adafactor's steps are long at this rate: in bf16, plans with six
// micro-batch sizes were off by 2 to 4 % in the sixth loss (by 1e-6 in fp32), where the other
// optimizers are off by 0.7 % at most.
TEST_F(CudaEngineTest, EveryOptimizerAgreesWithTheCpu) {
  SNUG_NEEDS_GPU();
  struct OptimizerCase {
    Optimizer optimizer;
    double exact, half;  // tolerances
  };
  for (const auto& [optimizer, tolerance, half_tolerance] :
       {OptimizerCase{Optimizer::kAdamW8Bit, 5e-3, 2e-2},
        OptimizerCase{Optimizer::kAdamWBf16, 2e-2, 2e-2},
        OptimizerCase{Optimizer::kAdafactor, 1e-3, 8e-2},
        OptimizerCase{Optimizer::kSgd, 1e-4, 2e-2},
        OptimizerCase{Optimizer::kSgdMomentum, 1e-4, 3e-2}}) {
    if (leaves_out_case()) continue;
    SCOPED_TRACE(optimizer_name(optimizer));
    const Curve cpu = on_cpu(10, optimizer);
    const Variant exact{.capacity = kWhole, .compute = DType::kF32, .optimizer = optimizer};
    const Variant half{
        .capacity = 300, .recompute = whole(1), .compute = half_here(), .optimizer = optimizer};
    expect_close(on_gpu(exact), cpu, tolerance);
    const Curve first = on_gpu(half), second = on_gpu(half);
    expect_close(first, cpu, half_tolerance);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.weights, second.weights);
  }
}

// Rounding to 127 steps takes values that differ in their last bit to one step or the next. A step
// is 1/127 of the row's largest, about three times its rms: in one of 128 inputs it is worth 3 /
// 127 / sqrt(128) = 2e-3 of the sum. Some such steps over three layers and ten updates: the CPU is
// off by up to 9e-3 from itself with micro-batches of other sizes.
TEST_F(CudaEngineTest, LossesOnQuantizedLayersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Tuning frozen{.freeze = {"layers.1-2"}, .lora = {}, .quantize = true};
  const Tuning adapted{
      .freeze = {}, .lora = {.rank = 4, .targets = {"all-linear"}}, .quantize = true};
  for (const Tuning& tuning : {frozen, adapted}) {
    SCOPED_TRACE(tuning.lora.rank);
    model_ = make_model(small_config(), Head::kClassifier, tuning);
    const Curve cpu = on_cpu();
    expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 2e-2);
    expect_close(on_gpu({300, whole(1), half_here()}), cpu, 3e-2);
    const Curve plain = on_gpu({kWhole, {}, DType::kF16});
    expect_close(plain, cpu, 2e-2);
    EXPECT_EQ(on_gpu({kWhole, whole(3), DType::kF16}).losses, plain.losses)
        << "recomputation gives the same bits";
    EXPECT_EQ(on_gpu({kWhole, Recomputation(4, {Part::kActivations}), DType::kF16}).losses,
              plain.losses);
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
  const Tuning adapters{.freeze = {},
                        .lora = {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = {}}};
  for (const HeadCase& c :
       {HeadCase{Family::kBert, Head::kTagger},
        {Family::kRoberta, Head::kTagger, Problem::kOneLabel, {.label_smoothing = 0.1f}},
        {Family::kBert, Head::kTagger, Problem::kOneLabel, {}, adapters},
        {Family::kGpt2, Head::kTagger},
        {Family::kBert, Head::kTagger, Problem::kOneLabel, {.weighted = true}},
        {Family::kBert, Head::kSpans},
        {Family::kRoberta, Head::kSpans, Problem::kOneLabel, {}, adapters},
        {Family::kBert, Head::kClassifier, Problem::kManyLabels},
        {Family::kRoberta, Head::kClassifier, Problem::kNumbers},
        {Family::kGpt2, Head::kClassifier},
        {Family::kBert,
         Head::kClassifier,
         Problem::kOneLabel,
         {.label_smoothing = 0.1f, .weighted = true}}}) {
    if (leaves_out_case()) continue;
    SCOPED_TRACE(testing::Message()
                 << architecture(c.family, c.head) << ", problem " << int(c.problem));
    ModelConfig config = small_config(c.family);
    config.problem = c.problem;
    model_ = make_model(config, c.head, c.tuning);
    const auto variant = [&](int64_t capacity, Recomputation recompute, DType compute) {
      return Variant{.capacity = capacity,
                     .recompute = std::move(recompute),
                     .compute = compute,
                     .loss = c.loss};
    };
    const Curve cpu = on_cpu(10, Optimizer::kAdamW, c.loss);
    const Curve plain = on_gpu(variant(kWhole, {}, DType::kF32));
    expect_close(plain, cpu, 1e-4);
    expect_close(on_gpu(variant(300, whole(2), DType::kF32)), cpu, 1e-4);
    EXPECT_EQ(on_gpu(variant(kWhole, whole(3), DType::kF32)).losses, plain.losses)
        << "recomputation gives the same bits";
    const Curve half = on_gpu(variant(300, {}, half_here())),
                again = on_gpu(variant(300, {}, half_here()));
    const bool squares = c.problem == Problem::kNumbers;  // an error of the number counts twice
    expect_close(half, cpu, squares ? 6e-2 : 3e-2);
    EXPECT_EQ(half.losses, again.losses);
    EXPECT_EQ(half.weights, again.weights);
    // The gradient of a large error times the first loss scale is more than fp16 holds: that step
    // would be skipped.
    if (!squares) expect_close(on_gpu(variant(kWhole, {}, DType::kF16)), cpu, 1e-2);
  }
}

// All tokens go on behind two layers; behind all of them the first or the last of each text. One
// bucket or several: rows beyond a micro-batch's are zero.
TEST_F(CudaEngineTest, KeptLayersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const std::vector<std::string> two = {"embeddings", "layers.0-1"},
                                 all = {"embeddings", "layers.0-2"}, head = {"all-but-head"};
  for (const auto& [family, kind, freeze] : {std::tuple{Family::kBert, Head::kClassifier, two},
                                             {Family::kBert, Head::kClassifier, head},
                                             {Family::kGpt2, Head::kClassifier, all},
                                             {Family::kGpt2, Head::kCausalLm, two},
                                             {Family::kBert, Head::kTagger, head},
                                             {Family::kBert, Head::kSpans, two}}) {
    if (leaves_out_case()) continue;
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
    for (const DType compute : {half_here(), DType::kF16}) {
      const Curve through = on_gpu(variant(300, compute, 0)),
                  kept = on_gpu(variant(300, compute, layers)),
                  again = on_gpu(variant(300, compute, layers));
      expect_close(kept, through, 1e-2);
      EXPECT_EQ(kept.losses, again.losses);
      EXPECT_EQ(kept.weights, again.weights);
    }
  }
}

TEST_F(CudaEngineTest, FrozenLayersAndAdaptersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  for (const Tuning& tuning :
       {Tuning{.freeze = {"embeddings", "layers.0-1"}, .lora = {}},
        Tuning{.freeze = {},
        .lora = {.rank = 4, .alpha = 8, .dropout = 0.1, .targets = {"query", "value", "dense"}}}}) {
    model_ = make_model(small_config(), Head::kClassifier, tuning);
    const Curve cpu = on_cpu();
    expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
    expect_close(on_gpu({300, whole(2), DType::kF32}), cpu, 1e-4);
    expect_close(on_gpu({kWhole, {}, half_here()}), cpu, 2e-2);
  }
}

// Prediction and embedding have a plan of their own, in which the factors of products exist in the
// compute type alone.
TEST_F(CudaEngineTest, ScoresAndEmbeddingsAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  for (const Purpose purpose : {Purpose::kScoring, Purpose::kEmbedding}) {
    const auto model =
        make_model(small_config(), purpose == Purpose::kScoring ? Head::kClassifier : Head::kNone);
    const auto results = [&](DeviceKind kind, DType compute) {
      PlanRequest request =
          test_request(*model, {.batch_size = kBatch, .longest = kLongest, .step_tokens = kWhole});
      request.graph = {.purpose = purpose, .compute = compute};
      if (kind == DeviceKind::kCuda) complete_for_gpu(request, 0);
      const Plan plan = make_plan(request);
      std::unique_ptr<Engine> engine;
      if (kind == DeviceKind::kCuda) {
        engine = std::make_unique<CudaEngine>(*model, plan, 5, gpu, products);
      } else {
        engine = std::make_unique<CpuEngine>(*model, plan, 5);
      }
      load(*engine, *model);
      engine->score(step_data(*model, 0, kWhole)[0].view());
      const std::span<const float> values = engine->result();
      return std::vector<float>(values.begin(), values.end());
    };
    const std::vector<float> expected = results(DeviceKind::kCpu, DType::kF32);
    double largest = 0;
    for (const float x : expected) largest = std::max<double>(largest, std::abs(x));
    for (const auto& [compute, tolerance] :
         {std::pair{DType::kF32, 1e-4}, {half_here(), 5e-2}, {DType::kF16, 1e-2}}) {
      const std::vector<float> got = results(DeviceKind::kCuda, compute);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], expected[i], tolerance * largest) << i;
      }
    }
  }
}

TEST_F(CudaEngineTest, ANumberThatIsNotFiniteChangesNoWeight) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  const Plan plan = plan_for(*model_, {kWhole, {}, half_here()}, DeviceKind::kCuda);
  CudaEngine engine(*model_, plan, /*seed=*/5, gpu, products);
  load(engine, *model_);
  const float broken = std::numeric_limits<float>::quiet_NaN();
  // A word that is in every batch.
  engine.weight(0).write(4 * 7, std::as_bytes(std::span(&broken, 1)));
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

TEST_F(CudaLanguageEngineTest, TenLossesAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
  expect_close(on_gpu({kWhole, {}, half_here()}), cpu, 2e-2);
  expect_close(on_gpu({kWhole, {}, DType::kF16}), cpu, 1e-2);
}

TEST_F(CudaLanguageEngineTest, LossesOnQuantizedLayersAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  model_ = make_model(small_config(Family::kGpt2), Head::kCausalLm,
                      {.freeze = {"embeddings", "layers.0-1"}, .lora = {}, .quantize = true});
  const Curve cpu = on_cpu();
  expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 5e-3);
  expect_close(on_gpu({kWhole, {}, half_here()}), cpu, 3e-2);
}

// Two texts, read in pieces and then written on token by token: the same tokens as on the CPU in
// fp32.
TEST_F(CudaLanguageEngineTest, WritesWhatTheCpuWrites) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  for (const SampleSpec& sample : {SampleSpec{}, SampleSpec{.temperature = 0.8f,
                                                 .top_k = 40,
                                                 .top_p = 0.9f,
                                                 .repetition_penalty = 1.3f,
                                                 .seed = 4}}) {
    const auto written = [&](DeviceKind kind, DType compute) {
      PlanRequest request =
          test_request(*model_, {.batch_size = 2, .longest = kLongest, .step_tokens = 2});
      request.graph = {.purpose = Purpose::kGeneration,
                       .compute = compute,
                       .context = kLongest,
                       .sample = sample};
      request.workload.target_rule = TargetRule::kLastToken;
      if (kind == DeviceKind::kCuda) complete_for_gpu(request, 0);
      request.pinned_capacity = 16;
      const Plan plan = make_plan(request);
      std::unique_ptr<Engine> engine;
      if (kind == DeviceKind::kCuda) {
        engine = std::make_unique<CudaEngine>(*model_, plan, 5, gpu, products);
      } else {
        engine = std::make_unique<CpuEngine>(*model_, plan, 5);
      }
      load(*engine, *model_);
      std::vector<std::vector<int32_t>> texts = {{3, 14, 15, 92, 65, 35, 89}, {79, 32}};
      std::vector<size_t> unread(2);
      for (int step = 0; step < 60; ++step) {
        BatchBuilder batch;
        for (size_t i = 0; i < 2; ++i) {
          batch.add_to_text(std::span(texts[i]).subspan(unread[i]), int32_t(unread[i]),
                            {.place = 1 - i, .number = int32_t(i)});
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
    // Rounding may choose another word sooner or later.
    const auto half = written(DeviceKind::kCuda, half_here());
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(half[i].size(), cpu[i].size());
    EXPECT_EQ(written(DeviceKind::kCuda, half_here()), half);
  }
}

TEST_F(CudaDistilledEngineTest, TenLossesAgreeWithTheCpu) {
  SNUG_NEEDS_GPU();
  for (const auto& [family, head] :
       {std::pair{Family::kBert, Head::kClassifier}, {Family::kGpt2, Head::kCausalLm}}) {
    distil(family, head);
    const Curve cpu = on_cpu();
    expect_close(on_gpu({kWhole, {}, DType::kF32}), cpu, 1e-4);
    expect_close(on_gpu({kWhole, {}, half_here()}), cpu, 3e-2);
    expect_close(on_gpu({kWhole, {}, DType::kF16}), cpu, 1e-2);
  }
}

class CudaGolden : public testing::TestWithParam<std::pair<const char*, Head>> {};

TEST_P(CudaGolden, LossesOfPyTorch) {
  SNUG_NEEDS_GPU();
  const auto folder = std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden" / GetParam().first;
  const Json steps = parse_json(read_small_file(folder / "steps.json"), "steps.json");
  const ModelConfig config = parse_config(read_small_file(folder / "config.json"), "config.json");
  const auto model = make_model(config, GetParam().second);
  PlanRequest request = test_request(*model, {.batch_size = 7, .longest = 40, .step_tokens = 106});
  complete_for_gpu(request, 0);
  const Plan plan = make_plan(request);
  const Gpu gpu("cuda");
  Products products(gpu, {}, false);
  CudaEngine engine(*model, plan, 1, gpu, products);
  load_weights(WeightFolder(folder), *model, [&](size_t i) { return engine.weight(i); }, {});
  engine.weights_changed();
  for (size_t s = 0; s < steps["batches"].size(); ++s) {
    BatchBuilder data;
    for (const Json& row : steps["batches"][s]) {
      data.add(row.at("ids").get<std::vector<int32_t>>(),
               row.at("type_ids").get<std::vector<int32_t>>(), row.value("label", -1));
      if (!row.contains("target_rows")) continue;
      data.predict(row["target_rows"].get<std::vector<int32_t>>(),
                   row["target_ids"].get<std::vector<int32_t>>());
    }
    engine.begin(double(std::max<int64_t>(
        data.dims().targets, model->head() == Head::kClassifier ? data.dims().sequences : 1)));
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
                         testing::Values(std::pair{"bert-tiny", Head::kClassifier},
                                         std::pair{"roberta-tiny", Head::kClassifier},
                                         std::pair{"bert-mlm-tiny", Head::kMaskedLm},
                                         std::pair{"distilbert-tiny", Head::kClassifier},
                                         std::pair{"distilbert-mlm-tiny", Head::kMaskedLm},
                                         std::pair{"gpt2-tiny", Head::kCausalLm}));

}  // namespace
}  // namespace snug::cuda
