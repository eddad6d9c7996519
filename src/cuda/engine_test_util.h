// What tests of whole training steps share: small models, made-up data, and the curves of an engine
// under a plan.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <random>

#include "cuda/cuda_test_util.h"
#include "cuda/engine.h"
#include "data/batch_builder.h"
#include "model/config_test_util.h"
#include "model/distilled.h"
#include "model/quantized_weights.h"
#include "model/weights.h"
#include "plan/plan_test_util.h"
#include "runtime/cpu_engine.h"

namespace snug::cuda::whole_steps {

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
inline Recomputation whole(size_t layers) { return Recomputation(layers + 1, Parts::all()); }

inline ModelConfig small_config(Family family = Family::kBert) {
  ModelConfig config = test_config(family, {.words = 500,
                                            .hidden = 128,
                                            .layers = 3,
                                            .heads = 4,
                                            .inner = 256,
                                            .positions = 96,
                                            .labels = 3});
  if (family == Family::kRoberta) {
    config.max_position_embeddings = 98, config.type_vocab_size = 2;  // its positions begin at 2
  }
  config.hidden_dropout = config.attention_dropout = 0.1;
  config.initializer_range = 0.1;
  return config;
}

inline bool is_language(const Model& model) { return model.head() == Head::kCausalLm; }
inline bool has_targets(const Model& model) {
  return is_language(model) || model.head() == Head::kTagger;
}

// Fewer texts where somebody watches: an engine begins by running every bucket.
inline const int64_t kBatch = watched_cases() ? 8 : 12;
inline constexpr int64_t kLongest = 96;
inline const int64_t kWhole = kBatch * kLongest;

inline Plan plan_for(const Model& model, const Variant& variant, DeviceKind kind) {
  PlanRequest request = test_request(
      model, {.batch_size = kBatch, .longest = kLongest, .step_tokens = kBatch * kLongest},
      variant.loss);
  request.graph.compute = variant.compute;
  request.graph.kept_layers = variant.kept_layers;
  request.optimizer = variant.optimizer;
  if (kind == DeviceKind::kCuda) complete_for_gpu(request, 0);
  request.pinned_capacity = variant.capacity;
  request.pinned_choice = {variant.recompute, is_language(model) ? variant.head_chunk : 0,
                           variant.converts, variant.offload, variant.activations_outside};
  return make_plan(request);
}

inline void load(Engine& engine, const Model& model) {
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    std::vector<float> values(size_t(model.parameters()[i].size()));
    const Parameter& parameter = model.parameters()[i];
    initialize(parameter, 0, values, {.seed = 3, .initializer_range = 0.1});
    const Block block = engine.weight(i);
    if (!parameter.quantized) {
      block.write(0, std::as_bytes(std::span(values)));
      continue;
    }
    const auto read = [&](uint64_t first, std::span<float> to) {
      std::copy_n(values.begin() + ptrdiff_t(first), to.size(), to.begin());
    };
    const int64_t inputs = parameter.inputs(), channels = parameter.size() / inputs;
    quantize_matrix({channels, inputs, parameter.is_in_out, read},
                    [&](const QuantizedChannels& some) {
                      block.write(size_t(some.first * inputs), std::as_bytes(some.values));
                      block.write(parameter.scales_offset() + size_t(some.first) * sizeof(float),
                                  std::as_bytes(some.scales));
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
inline std::vector<int32_t> random_label(const Model& model, size_t tokens, const LossOptions& loss,
                                         std::mt19937& random) {
  const auto number = [&] { return std::bit_cast<int32_t>(float(random() % 1000) / 250.0f); };
  if (model.head() == Head::kSpans) return {int32_t(random() % tokens), int32_t(random() % tokens)};
  const bool one =
      model.head() != Head::kClassifier || model.config().problem_type() == Problem::kOneLabel;
  std::vector<int32_t> words(size_t(label_words(model.config(), model.head(), loss)));
  for (int32_t& word : words) {
    word = one || model.config().problem_type() == Problem::kManyLabels ? int32_t(random() % 3)
                                                                        : number();
  }
  for (size_t i = 1; loss.weighted && i < words.size(); ++i) words[i] = number();
  return words;
}

// Step s of a made-up data set: lengths from 1 to the longest, packed by the capacity.
inline std::vector<MicroBatch> step_data(const Model& model, int s, int64_t capacity,
                                         const LossOptions& loss = {}) {
  std::mt19937 random(unsigned(s) + 100);
  std::vector<MicroBatch> packed(1);
  for (int64_t i = 0; i < kBatch; ++i) {
    std::vector<int32_t> ids(i == 0   ? 1
                             : i == 1 ? kLongest
                                      : 1 + random() % kLongest),
        types(ids.size());
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
inline double count_targets(const std::vector<MicroBatch>& data, const Model& model,
                            const LossOptions& loss) {
  double count = 0;
  for (const MicroBatch& micro : data) {
    const Batch batch = micro.view();
    const int64_t targets = has_targets(model) ? batch.dims.targets : batch.dims.sequences;
    for (int64_t t = 0; t < targets; ++t) {
      int64_t place = 2 * t + 1;
      if (has_targets(model)) {
        place =
            batch.row_of[batch.target_rows[t]] * batch.dims.label_words + 1 + batch.target_ids[t];
      }
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
inline void give_states(Engine& engine, const Batch& batch) {
  const auto made = engine.run_prefix(batch);
  const std::vector<std::byte> states(made.begin(), made.end());
  const std::span<std::byte> to = engine.given_states(batch.dims);
  ASSERT_EQ(to.size(), states.size());
  std::ranges::copy(states, to.begin());
}

inline Curve train(Engine& engine, const Model& model, const Variant& variant, int steps) {
  load(engine, model);
  if (watched_cases() != nullptr) steps = std::min(steps, 3);
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

// One set of algorithms for all tests of a process: what is compared bit for bit must not depend on
// timings, nor on those of others that run at the same time.
inline const std::filesystem::path& process_cache() {
  struct Folder {
    ~Folder() {
      if (kept_choices().empty()) std::filesystem::remove_all(path);
    }
    const std::filesystem::path path =
        !kept_choices().empty()
            ? kept_choices()
            : testing::TempDir() + "snug-engine-test-" + std::to_string(::getpid());
  };
  static const Folder folder;
  return folder.path;
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
  Curve on_cpu(int steps = 10, Optimizer optimizer = Optimizer::kAdamW,
               const LossOptions& loss = {}) {
    const Variant variant{.capacity = kWhole, .optimizer = optimizer, .loss = loss};
    const Plan plan = plan_for(*model_, variant, DeviceKind::kCpu);
    CpuEngine engine(*model_, plan, /*seed=*/5);
    return train(engine, *model_, variant, steps);
  }
  static void expect_close(const Curve& a, const Curve& b, double tolerance) {
    for (size_t s = 0; s < a.losses.size(); ++s) {
      EXPECT_NEAR(a.losses[s], b.losses[s], tolerance * std::abs(b.losses[s]))
          << "loss of step " << s;
      EXPECT_NEAR(a.norms[s], b.norms[s], 20 * tolerance * b.norms[s])
          << "gradient norm of step " << s;
    }
  }

  static void expect_same(const Curve& a, const Curve& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.weights, b.weights);
  }

  std::unique_ptr<Model> model_ = make_model(small_config(), Head::kClassifier);
  const std::filesystem::path& cache_ = process_cache();
};

// Causal language modelling: the head in chunks, targets, weights stored [in, out], tanh GELU.
class CudaLanguageEngineTest : public CudaEngineTest {
 protected:
  CudaLanguageEngineTest() { model_ = make_model(small_config(Family::kGpt2), Head::kCausalLm); }
};

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

}  // namespace snug::cuda::whole_steps
