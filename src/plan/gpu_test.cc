#include "plan/gpu.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "model/config_test_util.h"
#include "plan/plan_test_util.h"

namespace snug {
namespace {

std::unique_ptr<Model> bert(int64_t words, int64_t hidden) {
  const TestSizes sizes{.words = words,
                        .hidden = hidden,
                        .layers = 12,
                        .heads = hidden / 64,
                        .inner = 4 * hidden,
                        .positions = 512};
  return make_model(test_config(Family::kBert, sizes), Head::kClassifier);
}

TEST(Buckets, CoverEveryCapacity) {
  for (const int64_t capacity : {1, 40, 127, 128, 129, 2112, 16384, 100000}) {
    const std::vector<int64_t> sizes = bucket_sizes(capacity);
    EXPECT_EQ(sizes.back(), capacity);
    EXPECT_LE(sizes.size(), 20u);
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
  }
}

TEST(DeviceTables, PartsDoNotOverlap) {
  const ParameterTable parameters = {{.name = "a", .rows = 100, .cols = 77, .parts = {}},
                                     {.name = "b", .cols = 3, .parts = {}}};
  const DeviceTables t =
      device_tables({.tokens = 37, .sequences = 5, .longest = 9}, parameters, true);
  EXPECT_EQ(t.chunk_count, 3u);  // 7700 elements are two chunks, 3 are one
  const std::vector<std::pair<size_t, size_t>> parts = {{t.state, sizeof(StepState)},
                                                        {t.ids, 37 * 4},
                                                        {t.positions, 37 * 4},
                                                        {t.type_ids, 37 * 4},
                                                        {t.row_of, 37 * 4},
                                                        {t.by_id, 37 * 4},
                                                        {t.starts, 6 * 4},
                                                        {t.labels, 5 * 4},
                                                        {t.samples, 5 * 8},
                                                        {t.counters, kCounterBytes},
                                                        {t.chunks, 3 * sizeof(UpdateChunk)},
                                                        {t.factors, sizeof(UpdateFactors)},
                                                        {t.result, sizeof(UpdateResult)},
                                                        {t.partials, kNormPartials * 8},
                                                        {t.seen, 3 * kSeenBytes}};
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    EXPECT_LE(parts[i].first + parts[i].second, parts[i + 1].first) << i;
  }
  EXPECT_LE(parts.back().first + parts.back().second, t.bytes);
}

// BERT-base for a card that is not here: 16 bytes a parameter, and it fits 8 GB but not 2. In fp16
// copies take 2 more, which are given up where memory is short.
TEST(GpuProfile, PlansWithoutTheCard) {
  const auto model = bert(30522, 768);
  const GpuProfile card = find_gpu_profile("rtx3070");
  PlanRequest request =
      test_request(*model, {.batch_size = 32, .longest = 128, .step_tokens = 32 * 128});
  request.graph.compute = DType::kBF16;
  request.budget_bytes = card.memory_bytes;
  request.pinned_offload = Offload::kNone;
  complete_for_gpu(request, card.overhead_bytes);
  const Plan roomy = make_plan(request);
  EXPECT_TRUE(roomy.fits);
  EXPECT_EQ(roomy.capacity.tokens, 32 * 128);
  const auto parameters = uint64_t(parameter_count(model->parameters()));
  EXPECT_GT(roomy.minimum_budget_bytes, 17 * parameters);
  EXPECT_LT(roomy.minimum_budget_bytes,
            21 * parameters + card.overhead_bytes + (uint64_t{100} << 20));
  uint64_t sum = 0;
  for (const PlanItem& item : roomy.items) sum += item.bytes;
  EXPECT_EQ(sum, roomy.peak_bytes);
  EXPECT_FALSE(roomy.choice.converts_weights);
  request.budget_bytes = uint64_t{1700} << 20;
  const Plan tight = make_plan(request);
  EXPECT_FALSE(tight.fits);
  request.budget_bytes = tight.minimum_budget_bytes;
  const Plan least = make_plan(request);
  EXPECT_TRUE(least.fits);
  EXPECT_FALSE(least.choice.converts_weights);
  request.graph.compute = DType::kF16;
  request.budget_bytes = make_plan(request).minimum_budget_bytes;
  EXPECT_TRUE(make_plan(request).choice.converts_weights);
}

// Gradients of the only micro-batch take half: with few tokens that is more than one text at a time
// saves.
TEST(GpuProfile, TheLeastBudgetMayTakeTheWholeStep) {
  const auto model = bert(30522, 768);
  PlanRequest request = test_request(*model, {.batch_size = 2, .longest = 16, .step_tokens = 32});
  request.graph.compute = DType::kBF16;
  request.pinned_offload = Offload::kNone;
  complete_for_gpu(request, 0);
  const uint64_t least = make_plan(request).minimum_budget_bytes;
  request.budget_bytes = least;
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.capacity.tokens, 32);
  request.pinned_capacity = 16;
  const uint64_t one_by_one = make_plan(request).minimum_budget_bytes;
  uint64_t matrices = 0;
  for (const Parameter& p : model->parameters()) matrices += p.is_matrix() ? uint64_t(p.size()) : 0;
  EXPECT_NEAR(double(one_by_one - least), 2.0 * double(matrices), 4 << 20);
}

// Two bytes a parameter of the layers stay on the card, and the tables in fp32; of sixteen the
// others go to the host, if it has them.
TEST(GpuProfile, TheHostTakesWhatTheUpdateAloneNeeds) {
  const auto model = bert(30522, 768);
  const auto parameters = uint64_t(parameter_count(model->parameters()));
  PlanRequest request =
      test_request(*model, {.batch_size = 32, .longest = 128, .step_tokens = 32 * 128});
  request.graph.compute = DType::kBF16;
  request.budget_bytes = uint64_t{600} << 20;
  complete_for_gpu(request, 0);
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.choice.offload, Offload::kGradients);
  EXPECT_LT(plan.minimum_budget_bytes, 5 * parameters);
  EXPECT_GT(plan.layout.outside_bytes, 12 * parameters);
  EXPECT_LE(plan.layout.outside_bytes, 14 * parameters);
  EXPECT_GE(plan.host_peak_bytes, plan.layout.outside_bytes);
  request.budget_bytes = uint64_t{40} << 30;
  EXPECT_EQ(make_plan(request).choice.offload, Offload::kNone);
  request.budget_bytes = uint64_t{600} << 20;
  request.host_budget_bytes = plan.host_peak_bytes - 1;
  EXPECT_NE(make_plan(request).choice.offload, Offload::kGradients);
}

// Gradients of matrices lie there in bf16 where a step is one micro-batch, which fetches none of
// them.
TEST(GpuProfile, TheHostTakesRoundedGradientsOfAWholeStep) {
  const auto model = bert(1000, 256);
  uint64_t matrices = 0;
  for (const Parameter& p : model->parameters()) matrices += p.is_matrix() ? uint64_t(p.size()) : 0;
  PlanRequest request = test_request(
      *model, {.batch_size = 2, .longest = 128, .step_tokens = 256, .mean_length = 128});
  request.graph.compute = DType::kBF16;
  request.budget_bytes = uint64_t{40} << 30;
  request.pinned_offload = Offload::kGradients;
  request.pinned_recompute = Recomputation();
  complete_for_gpu(request, 0);
  const auto with_capacity = [&](int64_t tokens) {
    request.pinned_capacity = tokens;
    return make_plan(request);
  };
  const Plan whole = with_capacity(256), halves = with_capacity(128);
  EXPECT_NEAR(double(halves.layout.outside_bytes - whole.layout.outside_bytes),
              2.0 * double(matrices), 4096.0 * double(model->parameters().size()));
  const auto nodes = [](const Plan& plan, std::string_view name) {
    return std::ranges::count_if(plan.step->graph.nodes(),
                                 [&](const Node& node) { return node.op->name() == name; });
  };
  EXPECT_EQ(nodes(whole, "store_gradient"), nodes(halves, "store_gradient"));
  EXPECT_EQ(
      nodes(halves, "fetch_gradient") - nodes(whole, "fetch_gradient"),
      std::ranges::count_if(model->parameters(), [](const Parameter& p) { return p.is_matrix(); }));
}

// A layer that is recomputed whole keeps one value a token and feature: two layers' worth and what
// is on its way stays.
TEST(GpuProfile, TheHostTakesWhatRecomputedLayersKeep) {
  const auto model = bert(30522, 768);
  PlanRequest request = test_request(
      *model, {.batch_size = 32, .longest = 512, .step_tokens = 32 * 512, .mean_length = 512});
  request.graph.compute = DType::kBF16;
  request.budget_bytes = uint64_t{40} << 30;
  complete_for_gpu(request, 0);
  request.pinned_offload = Offload::kNone;
  request.pinned_capacity = 32 * 512;
  request.pinned_recompute = Recomputation(13, Parts::all());
  const Plan inside = make_plan(request);
  request.activations_outside = true;
  const Plan outside = make_plan(request);
  const uint64_t value = 32 * 512 * 768 * 2;
  EXPECT_EQ(outside.layout.stowed.size(), 10u);
  EXPECT_EQ(outside.layout.outside_bytes, 10 * value);
  EXPECT_EQ(outside.host_peak_bytes, inside.host_peak_bytes + 10 * value);
  EXPECT_LE(outside.arena_bytes + 8 * value, inside.arena_bytes);
  EXPECT_GE(outside.step_seconds, inside.step_seconds);
  EXPECT_LT(outside.step_seconds, 1.02 * inside.step_seconds) << "copies run beside layers";
  // Unless something else is pinned, all layers are recomputed, and without limits nothing goes
  // outside.
  request.pinned_recompute.reset();
  EXPECT_TRUE(make_plan(request).choice == outside.choice);
  request.pinned_offload.reset();
  request.pinned_capacity.reset();
  EXPECT_FALSE(make_plan(request).choice.activations_outside);
  // Where the host has no room for the state, but for this, and micro-batches are large enough to
  // be worth a stream.
  request.pinned_capacity = 32 * 512;
  request.host_budget_bytes = uint64_t{500} << 20;
  request.budget_bytes = minimum_budget(request);
  const Plan least = make_plan(request);
  EXPECT_TRUE(least.fits);
  EXPECT_TRUE(least.choice.activations_outside);
  EXPECT_LE(least.host_peak_bytes, request.host_budget_bytes);
  request.host_budget_bytes = least.host_peak_bytes - 1;
  EXPECT_GT(minimum_budget(request), request.budget_bytes);
}

// Texts of 512 tokens: room for 900 holds one, so layers are rather recomputed until two fit.
TEST(GpuProfile, CountsWholeTextsInAMicroBatch) {
  const auto model = bert(1000, 256);
  PlanRequest request = test_request(
      *model, {.batch_size = 32, .longest = 512, .step_tokens = 32 * 512, .mean_length = 512});
  request.graph.compute = DType::kBF16;
  complete_for_gpu(request, 0);
  request.budget_bytes = uint64_t{1} << 40;
  request.pinned_capacity = 900;
  request.pinned_recompute = Recomputation();
  const uint64_t budget = make_plan(request).peak_bytes;
  request.pinned_capacity.reset();
  request.pinned_recompute.reset();
  request.budget_bytes = budget;
  const Plan plan = make_plan(request);
  EXPECT_GE(plan.capacity.tokens, 1024);
  EXPECT_NE(describe(plan.choice.recompute, plan.layers), "none");
  EXPECT_LE(plan.peak_bytes, budget);
}

// A large vocabulary on a small model: logits are what the memory goes to.
TEST(LanguageModels, LogitsShrinkWithTheBudget) {
  const TestSizes sizes{
      .words = 20000, .hidden = 64, .layers = 3, .heads = 2, .inner = 256, .positions = 256};
  const auto model = make_model(test_config(Family::kGpt2, sizes), Head::kCausalLm);
  PlanRequest request = test_request(
      *model, {.batch_size = 8, .longest = 256, .step_tokens = 8 * 256, .mean_length = 256});
  const Plan roomy = make_plan(request);
  EXPECT_EQ(roomy.choice.head_chunk, 8 * 256);
  EXPECT_EQ(roomy.capacity.targets, 8 * 256);
  // Half of the logits' memory is gone, but not the micro-batch: the head gives way first.
  request.budget_bytes = roomy.peak_bytes - uint64_t(8 * 256 * 20000 * 4 / 2);
  const Plan tighter = make_plan(request);
  EXPECT_TRUE(tighter.fits);
  EXPECT_LT(tighter.choice.head_chunk, 8 * 256);
  EXPECT_EQ(tighter.capacity.tokens, 8 * 256);
  EXPECT_EQ(describe(tighter.choice.recompute, tighter.layers), "none");
  request.budget_bytes = tighter.minimum_budget_bytes;
  const Plan least = make_plan(request);
  EXPECT_TRUE(least.fits);
  EXPECT_EQ(least.choice.head_chunk, 128);
  EXPECT_EQ(least.capacity.tokens, 256);
}

TEST(Buckets, FollowTheWorkload) {
  const Workload blocks{.batch_size = 8, .longest = 1024, .step_tokens = 8192, .mean_length = 1020};
  EXPECT_EQ(bucket_sizes(blocks, 3000), (std::vector<int64_t>{1024, 2048, 3000}));
  EXPECT_EQ(bucket_sizes(blocks, 1024), (std::vector<int64_t>{1024}));
  const Workload mixed{.batch_size = 8, .longest = 1024, .step_tokens = 8192, .mean_length = 300};
  EXPECT_EQ(bucket_sizes(mixed, 1024), bucket_sizes(1024));
  const Workload writing{
      .batch_size = 8, .longest = 1024, .step_tokens = 8, .target_rule = TargetRule::kLastToken};
  EXPECT_EQ(bucket_sizes(writing, 512), (std::vector<int64_t>{8, 512}));
  EXPECT_EQ(bucket_sizes(writing, 8), (std::vector<int64_t>{8}));
  const Workload timing{.batch_size = 8, .longest = 512, .step_tokens = 4096, .one_size = true};
  EXPECT_EQ(bucket_sizes(timing, 2048), (std::vector<int64_t>{2048}));
}

TEST(GpuProfile, UnknownNamesAreUsageErrors) { EXPECT_THROW(find_gpu_profile("abacus"), Error); }

}  // namespace
}  // namespace snug
