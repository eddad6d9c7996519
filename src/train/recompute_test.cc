// Whatever backward makes again, gradients and losses have the same bits as without: every subset
// of parts in all layers, and different ones from layer to layer, with dropout on; and wherever
// what such layers keep lies meanwhile.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "core/file.h"
#include "core/json.h"
#include "data/batch_builder.h"
#include "model/config.h"
#include "model/weight_files.h"
#include "model/weights.h"
#include "ops/activation_traffic.h"
#include "plan/plan_test_util.h"
#include "runtime/cpu_engine.h"
#include "runtime/executor.h"

namespace snug {
namespace {

struct Case {
  const char* model;
  Head head;
  Tuning tuning{};
};

class Recomputing : public testing::TestWithParam<Case> {
 protected:
  Recomputing() {
    const std::filesystem::path all = std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden";
    const std::string name = GetParam().model,
                      file = name.starts_with("heads/") ? name + ".json" : name + "/steps.json";
    const Json steps = parse_json(read_small_file(all / file), file);
    folder_ = all / steps.value("base", name);
    rows_ = steps["batches"][0];
    ModelConfig config = parse_config(read_small_file(folder_ / "config.json"), "config.json");
    config.embedding_dropout = config.hidden_dropout = config.attention_dropout = 0.1;
    config.labels.resize(steps.value("outputs", config.labels.size()));
    model_ = make_model(config, GetParam().head, GetParam().tuning);
  }

  struct Result {
    std::vector<std::byte> gradients;
    double loss = 0;
    size_t kept_bytes = 0, stowed = 0;
    bool operator==(const Result& other) const {
      return gradients == other.gradients && loss == other.loss;
    }
  };
  struct Texts {
    BatchBuilder rows;
    std::vector<int32_t> spans;
    double targets = 0;

    Batch view() const {
      Batch batch = rows.view();
      if (!spans.empty()) batch.labels = spans.data(), batch.dims.label_words = 2;
      return batch;
    }
  };
  Texts texts() const {
    Texts all;
    for (const Json& row : rows_) {
      for (const int32_t end : row.value("span", std::vector<int32_t>())) all.spans.push_back(end);
      all.rows.add(row.at("ids").get<std::vector<int32_t>>(),
                   row.at("type_ids").get<std::vector<int32_t>>(), row.value("label", -1));
      if (row.contains("target_rows")) {
        all.rows.predict(row["target_rows"].get<std::vector<int32_t>>(),
                         row["target_ids"].get<std::vector<int32_t>>());
      }
      all.targets += row.contains("target_rows") ? double(row["target_rows"].size()) : 1;
    }
    return all;
  }
  Plan plan_for(const Recomputation& recompute, bool activations_outside) const {
    PlanRequest request =
        test_request(*model_, {.batch_size = 7, .longest = 40, .step_tokens = 106});
    const bool has_targets = request.workload.target_rule != TargetRule::kNone;
    request.pinned_choice = {.recompute = recompute,
                             .head_chunk = has_targets ? 16 : 0,
                             .activations_outside = activations_outside};
    return make_plan(request);
  }
  Result run(const Recomputation& recompute, bool activations_outside = false) const {
    const Plan plan = plan_for(recompute, activations_outside);
    CpuEngine engine(*model_, plan, /*seed=*/1, testing::TempDir());
    // What is read before it is made would be NaN.
    std::vector<std::byte> poison(plan.layout.transient.bytes, std::byte{0xff});
    engine.region(Region::kWeights).memory->write(plan.layout.transient.offset, poison);
    load_weights(WeightFolder(folder_), *model_, [&](size_t i) { return engine.weight(i); },
                 {.ignore_mismatched_sizes = true});
    const Texts data = texts();
    engine.begin(2 * data.targets);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) engine.accumulate(data.view());
    Result result;
    const Block gradients = engine.region(Region::kGradients);
    result.gradients.resize(gradients.bytes);
    gradients.read(0, result.gradients);
    engine.update({.learning_rate = 0, .step = 1}, 0);
    result.loss = engine.finish().loss;
    result.kept_bytes = plan.step_memory.live_bytes;
    result.stowed = plan.layout.stowed.size();
    return result;
  }

  std::filesystem::path folder_;
  Json rows_;
  std::unique_ptr<Model> model_;
};

Parts subset(unsigned bits) {
  Parts parts;
  for (size_t i = 0; i < kPartNames.size(); ++i) {
    if (bits >> i & 1) parts.add(kPartNames[i].part);
  }
  return parts;
}

TEST_P(Recomputing, EverySubsetOfPartsGivesTheSameBits) {
  const Result kept = run({});
  ASSERT_TRUE(std::isfinite(kept.loss));
  const size_t segments = size_t(model_->layers()) + 1;
  for (unsigned bits = 1; bits < 1u << kPartNames.size(); ++bits) {
    const Result again = run(Recomputation(segments, subset(bits)));
    EXPECT_TRUE(again == kept) << to_string(subset(bits));
    // Where weights are frozen little is kept anyway, and what makes a sum again may be more than
    // the sum.
    EXPECT_LE(again.kept_bytes, kept.kept_bytes + kept.kept_bytes / 20) << to_string(subset(bits));
  }
}

TEST_P(Recomputing, LayersMayDiffer) {
  const Result kept = run({});
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Recomputation recompute(size_t(model_->layers()) + 2);
    for (Parts& parts : recompute) parts = subset(random() % (1u << kPartNames.size()));
    EXPECT_TRUE(run(recompute) == kept) << describe(recompute, model_->layers());
  }
}

TEST_P(Recomputing, WhatLayersKeepMayLieOutside) {
  const Result kept = run({});
  std::mt19937 random(8);
  for (int round = 0; round < 10; ++round) {
    Recomputation recompute(size_t(model_->layers()) + 1, Parts::all());
    for (Parts& parts : recompute) {
      if (round > 0 && random() % 3 == 0) parts = subset(random() % (1u << kPartNames.size()));
    }
    const Result inside = run(recompute), outside = run(recompute, true);
    EXPECT_TRUE(outside == kept) << describe(recompute, model_->layers());
    EXPECT_LE(outside.kept_bytes, inside.kept_bytes) << describe(recompute, model_->layers());
    if (round > 0 || !GetParam().tuning.freeze.empty()) continue;
    EXPECT_EQ(outside.stowed, size_t(model_->layers()) - 2)
        << "all but what the last layer's backward reads";
  }
}

// On a GPU copies run beside nodes. At worst one happens as late as it can, or a fetch as early:
// neither changes a bit.
TEST_P(Recomputing, CopiesMayTakeTheirTime) {
  const Recomputation all(size_t(model_->layers()) + 1, Parts::all());
  const Result kept = run({});
  const Plan plan = plan_for(all, true);
  const Texts data = texts();
  for (const bool late : {true, false}) {
    std::vector<std::byte> arena(plan.arena_bytes + kTensorAlignment),
        outside(plan.layout.outside_bytes);
    std::byte* const base =
        arena.data() +
        (kTensorAlignment - reinterpret_cast<uintptr_t>(arena.data()) % kTensorAlignment);
    std::memset(base + plan.layout.transient.offset, 0xff, plan.layout.transient.bytes);
    HostMemory inside({base, plan.arena_bytes}), away(outside);
    const auto weight = [&](size_t i) {
      const Parameter& p = model_->parameters()[i];
      return Block{&inside, plan.layout.parameters[i].weight,
                   p.quantized ? p.quantized_bytes() : size_t(p.size()) * sizeof(float)};
    };
    load_weights(WeightFolder(folder_), *model_, weight, {.ignore_mismatched_sizes = true});
    Executor executor(plan.step->graph, plan.step_memory, plan.layout, base);
    const StepContext context{
        .seed = 1, .training = true, .loss_scale = 1.0f / float(2 * data.targets)};
    const Batch batch = data.view();
    std::map<int, std::function<void()>> running;  // copies by slot
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      executor.for_each(batch.dims, [&](const Executor::Placed& node) {
        const auto copy = [&, node] {
          node.op.run({.in = node.in,
                       .out = node.out,
                       .workspace = node.workspace,
                       .batch = &batch,
                       .step = &context,
                       .outside = &away,
                       .stowed = plan.layout.stowed});
        };
        if (const auto* stow = dynamic_cast<const StowActivation*>(&node.op); stow && late) {
          running[stow->slot] = copy;
        } else if (const auto* fetch = dynamic_cast<const FetchActivation*>(&node.op);
                   fetch && late) {
          running[fetch->slot] = copy;
        } else {
          copy();
        }
        const auto* await = dynamic_cast<const AwaitActivation*>(&node.op);
        if (await && late) running.extract(await->slot).mapped()();
      });
    }
    EXPECT_TRUE(running.empty());
    EXPECT_EQ(*executor.scalar(plan.step->loss), kept.loss);
    EXPECT_EQ(std::memcmp(base + plan.layout.gradients.offset, kept.gradients.data(),
                          kept.gradients.size()),
              0)
        << (late ? "late" : "early");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Recomputing,
    testing::Values(
        Case{"bert-tiny", Head::kClassifier}, Case{"roberta-mlm-tiny", Head::kMaskedLm},
        Case{"gpt2-tiny", Head::kCausalLm},
        Case{"bert-tiny",
             Head::kClassifier,
             {.freeze = {}, .lora = {.rank = 4, .dropout = 0.1, .targets = {}}}},
        Case{"gpt2-tiny", Head::kCausalLm, {.freeze = {"embeddings", "layers.0"}, .lora = {}}},
        Case{"heads/bert-tag", Head::kTagger},
        Case{"heads/roberta-tag",
             Head::kTagger,
             {.freeze = {}, .lora = {.rank = 4, .dropout = 0.1, .targets = {}}}},
        Case{"heads/bert-qa",
             Head::kSpans,
             {.freeze = {"layers.0-1"}, .lora = {}, .quantize = true}},
        Case{"heads/gpt2-label", Head::kClassifier}));

}  // namespace
}  // namespace snug
