// The whole model against PyTorch and transformers: logits, every gradient, ten AdamW steps, with and without
// recomputation and for several micro-batch capacities. tests/golden/make_bert_golden.py makes the expected values, in
// fp64; ours are fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "core/file.h"
#include "core/json.h"
#include "data/batch_builder.h"
#include "model/config.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/weight_files.h"
#include "model/weights.h"
#include "plan/planner.h"
#include "runtime/cpu_engine.h"

namespace snug {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden/bert-tiny";

// Rows in order, a new micro-batch whenever the next row does not fit.
std::vector<BatchBuilder> pack(const Json& rows, size_t capacity) {
  std::vector<BatchBuilder> packed(1);
  for (const Json& row : rows) {
    const auto ids = row.at("ids").get<std::vector<int32_t>>(), types = row.at("type_ids").get<std::vector<int32_t>>();
    if (size_t(packed.back().dims().tokens) + ids.size() > capacity) packed.emplace_back();
    packed.back().add(ids, types, row.at("label"));
  }
  return packed;
}

class Golden : public testing::TestWithParam<std::pair<int64_t, int>> {  // capacity, recomputed layers
 protected:
  Golden() : steps_(parse_json(read_small_file(kFolder / "steps.json"), "steps.json")) {
    const BertConfig config = parse_config(read_small_file(kFolder / "config.json"), "config.json");
    model_ = make_bert(config, Head::kClassifier);
    PlanRequest request;
    request.model = model_.get();
    request.workload = {.batch_size = 7, .longest = 40, .step_tokens = 106};
    request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
    request.budget_bytes = uint64_t{1} << 30;
    request.device = {.kind = DeviceKind::kCpu, .threads = 2};
    request.pinned_capacity = GetParam().first;
    request.pinned_recompute = GetParam().second;
    plan_ = make_plan(request);
    engine_ = std::make_unique<CpuEngine>(*model_, plan_, /*seed=*/1);
    load_weights(WeightFolder(kFolder), model_->parameters(),
                 [this](size_t i) { return engine_->parameter(Region::kWeights, i); }, {});
    engine_->weights_changed();
  }

  // Forward and backward of one step. Logits in row order.
  void accumulate(const Json& rows) {
    engine_->begin(rows.size());
    logits_.clear();
    for (const BatchBuilder& micro : pack(rows, size_t(plan_.capacity.tokens))) {
      engine_->accumulate(micro.view());
      const std::span<const float> logits = engine_->result();
      logits_.insert(logits_.end(), logits.begin(), logits.end());
    }
  }
  StepResult update(int64_t step) {
    engine_->update({.learning_rate = steps_["learning_rate"],
                     .beta1 = steps_["beta1"],
                     .beta2 = steps_["beta2"],
                     .epsilon = steps_["epsilon"],
                     .weight_decay = steps_["weight_decay"],
                     .step = step},
                    steps_["max_grad_norm"]);
    return engine_->finish();
  }

  Json steps_;
  std::unique_ptr<Model> model_;
  Plan plan_;
  std::unique_ptr<Engine> engine_;
  std::vector<float> logits_;
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

TEST_P(Golden, LogitsAndEveryGradient) {
  accumulate(steps_["batches"][0]);
  const SafetensorsFile expected(kFolder / "expected.safetensors");
  const auto read = [&](const std::string& name) {
    const TensorEntry* entry = expected.find(name);
    EXPECT_NE(entry, nullptr) << name;
    std::vector<float> values(entry->elements());
    expected.read_as_f32(*entry, 0, values);
    return values;
  };
  const auto logits = read("logits");
  ASSERT_EQ(logits.size(), logits_.size());
  EXPECT_LE(distance(logits, logits_), 1e-5 * norm_of(logits));

  const double total = steps_["gradient_norms"][0];
  size_t compared = 0;
  for (size_t i = 0; i < model_->parameters().size(); ++i) {
    const Parameter& parameter = model_->parameters()[i];
    std::vector<float> gradient(size_t(parameter.size()));
    engine_->parameter(Region::kGradients, i).read(0, std::as_writable_bytes(std::span(gradient)));
    std::span<const float> ours = gradient;
    for (const ParameterPart& part : parameter.parts) {
      const auto want = read("gradient." + part.name);
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

TEST_P(Golden, TenLossesOfAdamW) {
  for (size_t step = 0; step < steps_["batches"].size(); ++step) {
    accumulate(steps_["batches"][step]);
    const StepResult result = update(int64_t(step) + 1);
    EXPECT_NEAR(result.loss, steps_["losses"][step].get<double>(), 1e-5 * result.loss) << "step " << step;
    EXPECT_NEAR(result.gradient_norm, steps_["gradient_norms"][step].get<double>(), 1e-4 * result.gradient_norm)
        << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, Golden,
                         testing::Values(std::pair<int64_t, int>{106, 0}, std::pair<int64_t, int>{40, 0},
                                         std::pair<int64_t, int>{106, 3}, std::pair<int64_t, int>{57, 2}));

}  // namespace
}  // namespace snug
