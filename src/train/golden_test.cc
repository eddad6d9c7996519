// Whole models against PyTorch and transformers: logits, every gradient, ten AdamW steps, with and without recomputation,
// for several micro-batch capacities and chunks of the head. tests/golden/make_golden.py makes the expected values, in
// fp64; ours are fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "core/file.h"
#include "core/json.h"
#include "data/batch_builder.h"
#include "model/config.h"
#include "model/distilled.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/weight_files.h"
#include "model/weights.h"
#include "plan/planner.h"
#include "runtime/cpu_engine.h"

namespace snug {
namespace {

struct Case {
  const char* model;
  Head head;
  int64_t capacity;
  Recomputation recompute;
  int64_t head_chunk = 0;
};

// The first so many layers, and the embeddings.
Recomputation whole(size_t layers) { return Recomputation(layers + 1, Parts::all()); }

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << c.capacity << " tokens, " << describe(c.recompute, 3) << " recomputed, chunks of " << c.head_chunk;
}

// Rows in order, a new micro-batch whenever the next row does not fit.
std::vector<BatchBuilder> pack(const Json& rows, size_t capacity) {
  std::vector<BatchBuilder> packed(1);
  for (const Json& row : rows) {
    const auto ids = row.at("ids").get<std::vector<int32_t>>(), types = row.at("type_ids").get<std::vector<int32_t>>();
    if (size_t(packed.back().dims().tokens) + ids.size() > capacity) packed.emplace_back();
    packed.back().add(ids, types, row.value("label", -1));
    if (row.contains("target_rows")) {
      packed.back().predict(row["target_rows"].get<std::vector<int32_t>>(), row["target_ids"].get<std::vector<int32_t>>());
    }
  }
  return packed;
}

uint64_t count_targets(const Json& rows) {
  uint64_t count = 0;
  for (const Json& row : rows) count += row.contains("target_rows") ? row["target_rows"].size() : 1;
  return count;
}

ModelConfig config_in(const std::filesystem::path& folder) {
  return parse_config(read_small_file(folder / "config.json"), "config.json");
}

class GoldenSteps : public testing::TestWithParam<Case> {
 protected:
  GoldenSteps()
      : all_(std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden"),
        folder_(all_ / GetParam().model),
        steps_(parse_json(read_small_file(folder_ / "steps.json"), "steps.json")) {}

  virtual void load(Engine& engine) const = 0;

  bool is_language() const { return GetParam().head != Head::kClassifier; }

  std::unique_ptr<Engine> make_engine(Purpose purpose, Plan& plan) const {
    PlanRequest request;
    request.model = model_.get();
    request.graph.purpose = purpose;
    request.workload = {.batch_size = 7, .longest = 40, .step_tokens = 106};
    if (is_language()) request.workload.target_rule = TargetRule::kEveryToken;
    request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
    request.budget_bytes = uint64_t{1} << 30;
    request.device = {.kind = DeviceKind::kCpu, .threads = 2};
    request.pinned_capacity = GetParam().capacity;
    request.pinned_choice = {.recompute = purpose == Purpose::kTraining ? GetParam().recompute : Recomputation(),
                             .head_chunk = GetParam().head_chunk};
    plan = make_plan(request);
    auto engine = std::make_unique<CpuEngine>(*model_, plan, /*seed=*/1);
    load(*engine);
    engine->weights_changed();
    return engine;
  }

  // Forward and backward of one step.
  void accumulate(Engine& engine, const Json& rows) const {
    engine.begin(count_targets(rows));
    for (const BatchBuilder& micro : pack(rows, size_t(GetParam().capacity))) engine.accumulate(micro.view());
  }
  StepResult update(Engine& engine, int64_t step) const {
    engine.update({.learning_rate = steps_["learning_rate"],
                   .beta1 = steps_["beta1"],
                   .beta2 = steps_["beta2"],
                   .epsilon = steps_["epsilon"],
                   .weight_decay = steps_["weight_decay"],
                   .step = step},
                  steps_["max_grad_norm"]);
    return engine.finish();
  }

  void expect_ten_losses() const {
    Plan plan;
    const auto engine = make_engine(Purpose::kTraining, plan);
    for (size_t step = 0; step < steps_["batches"].size(); ++step) {
      accumulate(*engine, steps_["batches"][step]);
      const StepResult result = update(*engine, int64_t(step) + 1);
      EXPECT_NEAR(result.loss, steps_["losses"][step].get<double>(), 1e-5 * result.loss) << "step " << step;
      EXPECT_NEAR(result.gradient_norm, steps_["gradient_norms"][step].get<double>(), 1e-4 * result.gradient_norm)
          << "step " << step;
    }
  }

  std::filesystem::path all_, folder_;
  Json steps_;
  std::unique_ptr<Model> model_;
};

class Golden : public GoldenSteps {
 protected:
  Golden() { model_ = make_model(config_in(folder_), GetParam().head); }

  void load(Engine& engine) const override {
    load_weights(WeightFolder(folder_), *model_, [&](size_t i) { return engine.weight(i); }, {});
  }
};

// A student of one folder and a teacher of another.
class DistilledGolden : public GoldenSteps {
 protected:
  DistilledGolden() : student_(all_ / steps_["student"].get<std::string>()), teacher_(all_ / steps_["teacher"].get<std::string>()) {
    model_ = make_distilled({config_in(student_), config_in(teacher_)}, GetParam().head, {steps_["temperature"], steps_["alpha"]});
  }

  size_t first_of_teacher() const { return model_->student().parameters().size(); }
  void load(Engine& engine) const override {
    const auto memory = [&](size_t i) { return engine.weight(i); };
    load_weights(WeightFolder(student_), model_->student(), memory, {});
    load_weights(WeightFolder(teacher_), *model_->teacher(), [&](size_t i) { return memory(first_of_teacher() + i); }, {});
  }

  std::filesystem::path student_, teacher_;
};

double norm_of(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += double(x) * x;
  return std::sqrt(sum);
}

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(sum);
}

std::vector<float> read(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  std::vector<float> values(entry->elements());
  file.read_as_f32(*entry, 0, values);
  return values;
}

TEST_P(Golden, Logits) {
  Plan plan;
  const auto engine = make_engine(is_language() ? Purpose::kLogits : Purpose::kScoring, plan);
  std::vector<float> logits;
  for (const BatchBuilder& micro : pack(steps_["batches"][0], size_t(GetParam().capacity))) {
    engine->score(micro.view());
    const std::span<const float> result = engine->result();
    logits.insert(logits.end(), result.begin(), result.end());
  }
  const auto expected = read(SafetensorsFile(folder_ / "expected.safetensors"), "logits");
  ASSERT_EQ(expected.size(), logits.size());
  EXPECT_LE(distance(expected, logits), 1e-5 * norm_of(expected));
}

TEST_P(Golden, EveryGradient) {
  Plan plan;
  const auto engine = make_engine(Purpose::kTraining, plan);
  accumulate(*engine, steps_["batches"][0]);
  const SafetensorsFile expected(folder_ / "expected.safetensors");
  const double total = steps_["gradient_norms"][0];
  size_t compared = 0;
  for (size_t i = 0; i < model_->parameters().size(); ++i) {
    const Parameter& parameter = model_->parameters()[i];
    std::vector<float> gradient(size_t(parameter.size()));
    engine->gradient(i).read(0, std::as_writable_bytes(std::span(gradient)));
    std::span<const float> ours = gradient;
    for (const ParameterPart& part : parameter.parts) {
      const auto want = read(expected, "gradient." + part.name);
      const auto got = ours.first(want.size());
      ours = ours.subspan(want.size());
      // The gradient of the keys' bias is zero in exact arithmetic (softmax ignores it), so what is left is rounding of
      // the size of the whole gradient's: that share is allowed on top.
      EXPECT_LE(distance(want, got), 1e-5 * norm_of(want) + 1e-7 * total) << part.name;
      EXPECT_GT(norm_of(want), 0) << part.name << " is not tested by this file";
      ++compared;
    }
  }
  EXPECT_EQ(compared + 1, expected.tensors().size()) << "every tensor of the file is compared";
}

TEST_P(Golden, TenLossesOfAdamW) { expect_ten_losses(); }

TEST_P(DistilledGolden, EveryGradient) {
  Plan plan;
  const auto engine = make_engine(Purpose::kTraining, plan);
  accumulate(*engine, steps_["batches"][0]);
  const Json& expected = steps_["gradients"];
  const double total = steps_["gradient_norms"][0];
  size_t compared = 0;
  for (size_t i = 0; i < first_of_teacher(); ++i) {
    const Parameter& parameter = model_->parameters()[i];
    std::vector<float> gradient(size_t(parameter.size()));
    engine->gradient(i).read(0, std::as_writable_bytes(std::span(gradient)));
    std::span<const float> ours = gradient;
    for (const ParameterPart& part : parameter.parts) {
      const auto got = ours.first(size_t(part.rows * (parameter.is_vector ? 1 : parameter.cols)));
      ours = ours.subspan(got.size());
      const double norm = expected.at(part.name)[0], tolerance = 1e-5 * norm + 1e-7 * total;  // as above
      double sum = 0;
      for (size_t n = 0; n < got.size(); ++n) sum += double(got[n]) * std::cos(double(n));
      EXPECT_NEAR(norm_of(got), norm, tolerance) << part.name;
      EXPECT_NEAR(sum, expected.at(part.name)[1].get<double>(), tolerance * std::sqrt(double(got.size()))) << part.name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, expected.size());
}

TEST_P(DistilledGolden, TenLossesOfAdamW) { expect_ten_losses(); }

INSTANTIATE_TEST_SUITE_P(Plans, DistilledGolden,
                         testing::Values(Case{"distilled-bert-tiny", Head::kClassifier, 106, {}},
                                         Case{"distilled-bert-tiny", Head::kClassifier, 57, whole(2)},
                                         Case{"distilled-bert-mlm-tiny", Head::kMaskedLm, 106, {}, 106},
                                         Case{"distilled-bert-mlm-tiny", Head::kMaskedLm, 57, whole(3), 5},
                                         Case{"distilled-gpt2-tiny", Head::kCausalLm, 106, {}, 106},
                                         Case{"distilled-gpt2-tiny", Head::kCausalLm, 57, whole(3), 7}));

INSTANTIATE_TEST_SUITE_P(Plans, Golden,
                         testing::Values(Case{"bert-tiny", Head::kClassifier, 106, {}}, Case{"bert-tiny", Head::kClassifier, 40, {}},
                                         Case{"bert-tiny", Head::kClassifier, 106, whole(3)}, Case{"bert-tiny", Head::kClassifier, 57, whole(2)},
                                         Case{"roberta-tiny", Head::kClassifier, 106, {}},
                                         Case{"roberta-tiny", Head::kClassifier, 57, whole(2)},
                                         Case{"bert-mlm-tiny", Head::kMaskedLm, 106, {}, 106},
                                         Case{"bert-mlm-tiny", Head::kMaskedLm, 57, whole(3), 5},
                                         Case{"roberta-mlm-tiny", Head::kMaskedLm, 106, {}, 7},
                                         Case{"gpt2-tiny", Head::kCausalLm, 106, {}, 106},
                                         Case{"gpt2-tiny", Head::kCausalLm, 40, {}, 13},
                                         Case{"gpt2-tiny", Head::kCausalLm, 106, whole(3), 32},
                                         Case{"gpt2-tiny", Head::kCausalLm, 57, whole(2), 1}));

}  // namespace
}  // namespace snug
