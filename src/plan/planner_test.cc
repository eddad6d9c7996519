// Properties of the search over random budgets: what is chosen fits, the printed minimum works and
// nothing below it, more memory is not slower.
#include "plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/config_test_util.h"
#include "plan/gpu.h"
#include "plan/plan_summary.h"
#include "plan/plan_test_util.h"

namespace snug {
namespace {

struct Setting {
  Family family = Family::kBert;
  Head head = Head::kClassifier;
  DeviceKind device = DeviceKind::kCpu;
  int64_t mean_length = 0;
};

std::unique_ptr<Model> small_model(const Setting& setting,
                                   const std::vector<std::string>& freeze = {}) {
  const TestSizes sizes{
      .words = 5000, .hidden = 128, .layers = 5, .heads = 4, .inner = 512, .positions = 256};
  return make_model(test_config(setting.family, sizes), setting.head,
                    {.freeze = freeze, .lora = {}});
}

PlanRequest request_for(const Model& model, const Setting& setting) {
  PlanRequest request = test_request(model, {.batch_size = 24,
                                             .longest = 256,
                                             .step_tokens = 24 * 256,
                                             .mean_length = setting.mean_length});
  request.process.buffer_bytes = [](const Dims& dims) { return uint64_t(dims.tokens) * 64; };
  if (setting.device == DeviceKind::kCuda) {
    request.graph.compute = DType::kBF16;
    complete_for_gpu(request, 100 << 20);
  }
  return request;
}

class PlannerProperties : public testing::TestWithParam<Setting> {};

TEST_P(PlannerProperties, HoldForRandomBudgets) {
  const auto model = small_model(GetParam());
  PlanRequest request = request_for(*model, GetParam());
  const Plan roomy = make_plan(request);
  ASSERT_TRUE(roomy.fits);
  EXPECT_EQ(describe(roomy.choice.recompute, roomy.layers), "none");
  EXPECT_EQ(roomy.capacity.tokens, 24 * 256);
  const uint64_t least = roomy.minimum_budget_bytes;
  EXPECT_EQ(minimum_budget(request), least);
  std::mt19937_64 random(3);
  std::vector<uint64_t> budgets = {least, roomy.peak_bytes};
  for (int i = 0; i < 30; ++i) budgets.push_back(least + random() % (roomy.peak_bytes - least));
  std::ranges::sort(budgets);
  double before = 1e30;
  for (const uint64_t budget : budgets) {
    request.budget_bytes = budget;
    const Plan plan = make_plan(request);
    ASSERT_TRUE(plan.fits) << budget;
    EXPECT_LE(plan.peak_bytes, budget);
    EXPECT_EQ(plan.minimum_budget_bytes, least);
    uint64_t sum = 0;
    for (const PlanItem& item : plan.items) sum += item.bytes;
    EXPECT_EQ(sum, plan.peak_bytes);
    EXPECT_LE(plan.step_seconds, 1.001 * before) << budget;
    before = plan.step_seconds;
  }
  request.budget_bytes = least - request.process.tolerance_bytes - 1;
  EXPECT_FALSE(make_plan(request).fits);
}

TEST_P(PlannerProperties, TheSweepIsAFrontier) {
  const auto model = small_model(GetParam());
  PlanRequest request = request_for(*model, GetParam());
  const std::vector<Plan> sweep = sweep_plans(request);
  ASSERT_GT(sweep.size(), 3u);
  for (size_t i = 0; i < sweep.size(); ++i) {
    EXPECT_TRUE(sweep[i].fits);
    EXPECT_LE(sweep[i].peak_bytes, sweep[i].budget_bytes);
    if (i == 0) continue;
    EXPECT_LT(sweep[i].step_seconds, sweep[i - 1].step_seconds);
    EXPECT_GT(sweep[i].budget_bytes, sweep[i - 1].budget_bytes);
  }
  EXPECT_EQ(sweep.front().budget_bytes, sweep.front().minimum_budget_bytes);
  // The budget that was asked for is the chosen one.
  const uint64_t middle = (sweep.front().budget_bytes + sweep.back().budget_bytes) / 2;
  request.budget_bytes = middle;
  const std::vector<Plan> around = sweep_plans(request);
  const std::vector<SweepPoint> points = summarize(around, middle);
  const auto chosen = std::ranges::find_if(points, &SweepPoint::chosen);
  ASSERT_NE(chosen, points.end());
  const Plan plan = make_plan(request);
  EXPECT_NEAR(chosen->relative_time, plan.step_seconds / around.back().step_seconds, 1e-9);
  // The least budget stays in the table, whatever is as fast.
  if (chosen == points.begin()) return;
  EXPECT_EQ(chosen->budget_bytes, middle);
  EXPECT_EQ(chosen->micro_batch_tokens, plan.capacity.tokens);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, PlannerProperties,
    testing::Values(Setting{}, Setting{.mean_length = 60},
                    Setting{.device = DeviceKind::kCuda, .mean_length = 256},
                    Setting{Family::kGpt2, Head::kCausalLm, DeviceKind::kCpu, 250},
                    Setting{Family::kGpt2, Head::kCausalLm, DeviceKind::kCuda, 256},
                    Setting{Family::kBert, Head::kTagger, DeviceKind::kCpu, 60},
                    Setting{Family::kBert, Head::kSpans, DeviceKind::kCuda, 256}));

// Cheap parts go first, and whole layers last.
TEST(Planner, GivesUpCheapPartsFirst) {
  const auto model = small_model({});
  PlanRequest request = request_for(*model, {.mean_length = 256});
  const Plan roomy = make_plan(request);
  request.budget_bytes = roomy.peak_bytes - (64 << 10);
  const Plan tight = make_plan(request);
  EXPECT_EQ(tight.capacity.tokens, roomy.capacity.tokens);
  EXPECT_TRUE(tight.choice.recompute[1] == Parts{Part::kNorms})
      << describe(tight.choice.recompute, tight.layers);
  EXPECT_TRUE(tight.choice.recompute.back().none());
}

struct Kept {
  Plan through, behind;  // frozen layers
};
Kept plans_for(const Setting& setting, const std::vector<std::string>& freeze, double epochs) {
  const auto model = small_model(setting, freeze);
  PlanRequest request = request_for(*model, setting);
  request.workload.epochs = epochs;
  Kept plans{make_plan(request), {}};
  request.graph.kept_layers = frozen_layers(*model);
  plans.behind = make_plan(request);
  return plans;
}

TEST(Planner, FrozenLayersAreFasterKeptWhereTheyAreReadAgain) {
  const std::vector<std::string> four = {"embeddings", "layers.0-3"}, head = {"all-but-head"};
  for (const auto& freeze : {four, head}) {
    const Kept thrice = plans_for({}, freeze, 3), once = plans_for({}, freeze, 1);
    EXPECT_LT(thrice.behind.step_seconds, thrice.through.step_seconds);
    EXPECT_GT(once.behind.step_seconds, once.through.step_seconds);
    EXPECT_LE(thrice.behind.peak_bytes, thrice.through.peak_bytes);
    EXPECT_EQ(thrice.behind.host_peak_bytes, thrice.behind.peak_bytes);
  }
  const Setting gpu{.device = DeviceKind::kCuda};
  const Kept tokens = plans_for(gpu, four, 3), texts = plans_for(gpu, head, 3);
  EXPECT_GT(tokens.behind.step_seconds, tokens.through.step_seconds)
      << "a file is slower than four narrow layers";
  EXPECT_LT(texts.behind.step_seconds, texts.through.step_seconds);
  EXPECT_EQ(tokens.behind.host_peak_bytes - tokens.through.host_peak_bytes, 3u * 24 * 256 * 128 * 2)
      << "on their way to the device";
}

TEST(Planner, MeasuredSpeedBecomesAPrediction) {
  const auto model = small_model({});
  PlanRequest request = request_for(*model, {});
  EXPECT_FALSE(make_plan(request).tokens_per_second.has_value());
  request.speed = derived_speed(request);
  request.speed->measured = true;
  const Plan plan = make_plan(request);
  ASSERT_TRUE(plan.tokens_per_second.has_value());
  EXPECT_NEAR(*plan.tokens_per_second, 24 * 256 / plan.step_seconds,
              1e-6 * *plan.tokens_per_second);
}

}  // namespace
}  // namespace snug
