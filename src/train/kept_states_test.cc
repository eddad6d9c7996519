// Training behind frozen layers whose output was kept: the same losses and gradients as through
// them, and states that come back as they went.
#include "train/kept_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "data/batch_builder.h"
#include "model/config_test_util.h"
#include "model/weight_files.h"
#include "model/weights.h"
#include "plan/plan_test_util.h"
#include "runtime/cpu_engine.h"

namespace snug {
namespace {

struct Case {
  const char* model;
  Head head;
  std::vector<std::string> freeze;
  int layers;  // that are kept
  Recomputation recompute{};
  bool quantize = false;
  bool trains_norm = false;  // of the one token that goes on, instead of all
};

class KeptLayers : public testing::TestWithParam<Case> {
 protected:
  KeptLayers() {
    const std::filesystem::path all = std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden";
    const std::string name = GetParam().model,
                      file = name.starts_with("heads/") ? name + ".json" : name + "/steps.json";
    const Json steps = parse_json(read_small_file(all / file), file);
    folder_ = all / steps.value("base", name);
    config_ = parse_config(read_small_file(folder_ / "config.json"), "config.json");
    config_.embedding_dropout = config_.hidden_dropout = config_.attention_dropout = 0;
    config_.labels.resize(steps.value("outputs", config_.labels.size()));
    model_ = make_model(config_, GetParam().head,
                        {.freeze = GetParam().freeze, .lora = {}, .quantize = GetParam().quantize});
    for (const Json& row : steps["batches"][0]) {
      for (const int32_t end : row.value("span", std::vector<int32_t>())) spans_.push_back(end);
      batch_.add(row.at("ids").get<std::vector<int32_t>>(),
                 row.at("type_ids").get<std::vector<int32_t>>(), row.value("label", -1));
      if (row.contains("target_rows")) {
        batch_.predict(row["target_rows"].get<std::vector<int32_t>>(),
                       row["target_ids"].get<std::vector<int32_t>>());
      }
    }
  }

  struct Result {
    std::vector<float> gradients;
    double loss = 0;
  };
  // Layers 0: through all of them.
  Result run(int layers) const {
    PlanRequest request =
        test_request(*model_, {.batch_size = 7, .longest = 40, .step_tokens = 106});
    request.graph.kept_layers = layers;
    request.pinned_choice = {.recompute = GetParam().recompute,
                             .head_chunk = GetParam().head == Head::kCausalLm ? 16 : 0};
    const Plan plan = make_plan(request);
    EXPECT_EQ(plan.prefix != nullptr, layers > 0);
    CpuEngine engine(*model_, plan, /*seed=*/1);
    load_weights(WeightFolder(folder_), *model_, [&](size_t i) { return engine.weight(i); },
                 {.ignore_mismatched_sizes = true});
    Batch view = batch_.view();
    if (!spans_.empty()) view.labels = spans_.data(), view.dims.label_words = 2;
    // What is read before it is made would be NaN.
    const auto poison = [&] {
      const std::vector<std::byte> bytes(plan.layout.transient.bytes, std::byte{0xff});
      engine.region(Region::kWeights).memory->write(plan.layout.transient.offset, bytes);
    };
    std::vector<std::byte> states;
    poison();
    if (layers > 0) {
      const auto made = engine.run_prefix(view);
      states.assign(made.begin(), made.end());
      EXPECT_EQ(states.size(), kept_states(*model_, request.graph).bytes(view.dims));
    }
    poison();
    engine.begin(double(request.workload.target_rule != TargetRule::kNone ? view.dims.targets
                                                                          : view.dims.sequences));
    if (layers > 0) std::ranges::copy(states, engine.given_states(view.dims).begin());
    engine.accumulate(view);
    Result result;
    const Block gradients = engine.region(Region::kGradients);
    result.gradients.resize(gradients.bytes / sizeof(float));
    gradients.read(0, std::as_writable_bytes(std::span(result.gradients)));
    engine.update({.learning_rate = 0, .step = 1}, 0);
    result.loss = engine.finish().loss;
    return result;
  }

  std::filesystem::path folder_;
  ModelConfig config_;
  std::unique_ptr<Model> model_;
  BatchBuilder batch_;
  std::vector<int32_t> spans_;
};

TEST_P(KeptLayers, GiveTheSameLossAndGradients) {
  ASSERT_EQ(frozen_layers(*model_), GetParam().layers);
  const Result whole = run(0), kept = run(GetParam().layers);
  ASSERT_TRUE(std::isfinite(whole.loss));
  EXPECT_EQ(kept.loss, whole.loss);
  EXPECT_TRUE(GetParam().trains_norm || kept.gradients == whole.gradients);
  // Zeros of other tokens take part in the sums of the norm's gradient, and change their order.
  for (size_t i = 0; i < whole.gradients.size(); ++i) {
    ASSERT_NEAR(kept.gradients[i], whole.gradients[i], 1e-7) << i;
  }
}

std::vector<std::string> front(const char* layers) { return {"embeddings", layers}; }

INSTANTIATE_TEST_SUITE_P(
    Models, KeptLayers,
    testing::Values(
        Case{"bert-tiny", Head::kClassifier, front("layers.0"), 1},
        Case{"bert-tiny", Head::kClassifier, {"all-but-head"}, 3},
        Case{"bert-tiny", Head::kClassifier, front("layers.0"), 1, Recomputation(4, Parts::all())},
        Case{"bert-tiny", Head::kClassifier, {"all-but-head"}, 3, {}, true},
        Case{"distilbert-tiny", Head::kClassifier, {"all-but-head"}, 3},
        Case{"roberta-tiny", Head::kClassifier, front("layers.0"), 1},
        Case{"gpt2-tiny", Head::kCausalLm, front("layers.0"), 1},
        Case{"gpt2-tiny", Head::kCausalLm, front("layers.0-1"), 2, Recomputation(4, Parts::all())},
        Case{"gpt2-tiny", Head::kCausalLm, front("layers.0-2"), 3},
        Case{"heads/gpt2-label", Head::kClassifier, {"all-but-head"}, 3},
        Case{"heads/gpt2-label", Head::kClassifier, front("layers.0-2"), 3, {}, false, true},
        Case{"heads/bert-tag", Head::kTagger, {"all-but-head"}, 3},
        Case{"heads/bert-qa", Head::kSpans, front("layers.0"), 1}));

TEST(FrozenLayers, AreThoseInFrontOfAllThatIsTrained) {
  const ModelConfig config = test_config(Family::kBert, {.layers = 4});
  const auto layers = [&](std::vector<std::string> freeze, LoraSpec lora = {}) {
    return frozen_layers(*make_model(config, Head::kClassifier,
                                     {.freeze = std::move(freeze), .lora = std::move(lora)}));
  };
  EXPECT_EQ(layers({}), 0);
  EXPECT_EQ(layers({"embeddings"}), 0);
  EXPECT_EQ(layers({"layers.0-3"}), 0) << "embeddings are trained";
  EXPECT_EQ(layers({"embeddings", "layers.0-1"}), 2);
  EXPECT_EQ(layers({"embeddings", "layers.0", "layers.2"}), 1);
  EXPECT_EQ(layers({"embeddings", "layers.0", "*.layer.1.attention.*"}), 1)
      << "the rest of layer 1 is trained";
  EXPECT_EQ(layers({"all-but-head"}), 4);
  EXPECT_EQ(layers({}, {.rank = 2, .targets = {}}), 0) << "adapters are trained in every layer";
}

class StatesFile : public testing::Test {
 protected:
  std::filesystem::path folder_ = testing::TempDir() + "snug-kept-states";
  static std::vector<std::byte> bytes(uint64_t row, size_t count) {
    std::vector<std::byte> result(count);
    for (size_t i = 0; i < count; ++i) result[i] = std::byte(row * 31 + i);
    return result;
  }
};

TEST_F(StatesFile, ReturnsWhatWasKeptInAnyOrder) {
  const KeptStates::Size size{
      .states = {.rows_are = Rows::kTokens, .cols = 5}, .rows = 40, .tokens = 820};
  EXPECT_EQ(size.file_bytes(), 40u * 16 + 820 * 20);
  KeptStates states(folder_, size);
  const auto length = [](uint64_t row) { return size_t(row + 1) * 20; };
  for (uint64_t i = 0; i < 40; ++i) states.keep(i * 7 % 40, bytes(i * 7 % 40, length(i * 7 % 40)));
  for (uint64_t row = 0; row < 40; ++row) {
    std::vector<std::byte> to(size.tokens * 20);
    ASSERT_EQ(states.read(row, to), length(row));
    to.resize(length(row));
    EXPECT_EQ(to, bytes(row, length(row)));
  }
}

TEST_F(StatesFile, KeepsOneStateOfARowWhereTheHeadReadsOne) {
  const KeptStates::Size size{
      .states = {.dtype = DType::kBF16, .rows_are = Rows::kSequences, .cols = 6},
      .rows = 10,
      .tokens = 1000};
  EXPECT_EQ(size.file_bytes(), 10u * 16 + 10 * 12);
}

TEST_F(StatesFile, SaysThatTheDiskHasNoRoom) {
  const KeptStates::Size size{.states = {.rows_are = Rows::kTokens, .cols = 1 << 20},
                              .rows = 1,
                              .tokens = uint64_t{1} << 36};
  try {
    const KeptStates states(folder_, size);
    FAIL() << "a file of 2^58 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kStorage);
    EXPECT_NE(std::string(error.what()).find("no room"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace snug
