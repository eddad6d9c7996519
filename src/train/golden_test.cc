// Whole models against PyTorch and transformers: logits, every gradient, ten AdamW steps, with and
// without recomputation, for several micro-batch capacities and chunks of the head.
// tests/golden/make_golden.py and make_heads.py make the expected values, in fp64; ours are fp32.
#include <gtest/gtest.h>

#include <bit>
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
#include "plan/plan_test_util.h"
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
  *out << c.model << ", " << c.capacity << " tokens, " << describe(c.recompute, 3)
       << " recomputed, chunks of " << c.head_chunk;
}

// The words of a row's label, as graph/op.h has them.
std::vector<int32_t> words_of(const Json& row) {
  if (row.contains("span")) return row["span"];
  std::vector<int32_t> words;
  if (row.contains("labels")) {
    words.resize((row["labels"].size() + 31) / 32);
    for (size_t c = 0; c < row["labels"].size(); ++c) {
      words[c / 32] = int32_t(uint32_t(words[c / 32]) | row["labels"][c].get<uint32_t>() << c % 32);
    }
  } else if (row.contains("numbers")) {
    for (const Json& number : row["numbers"]) {
      words.push_back(std::bit_cast<int32_t>(number.get<float>()));
    }
  } else {
    words.push_back(row.value("label", -1));
    if (row.contains("weight")) words.push_back(std::bit_cast<int32_t>(row["weight"].get<float>()));
    if (row.contains("class_weights")) {
      for (const float weight : row["class_weights"]) {
        words.push_back(std::bit_cast<int32_t>(weight));
      }
    }
  }
  return words;
}

struct MicroBatch {
  BatchBuilder rows;
  std::vector<int32_t> labels;

  void add(const Json& row, uint64_t sample) {
    rows.add(row.at("ids").get<std::vector<int32_t>>(),
             row.at("type_ids").get<std::vector<int32_t>>(), -1, sample);
    const std::vector<int32_t> words = words_of(row);
    labels.insert(labels.end(), words.begin(), words.end());
    if (row.contains("target_rows")) {
      rows.predict(row["target_rows"].get<std::vector<int32_t>>(),
                   row["target_ids"].get<std::vector<int32_t>>());
    }
  }
  Batch view() const {
    Batch batch = rows.view();
    batch.labels = labels.data();
    batch.dims.label_words = int64_t(labels.size()) / batch.dims.sequences;
    return batch;
  }
};

// Rows in order, a new micro-batch whenever the next row does not fit.
std::vector<MicroBatch> pack(const Json& rows, size_t capacity) {
  std::vector<MicroBatch> packed(1);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (size_t(packed.back().rows.dims().tokens) + rows[i].at("ids").size() > capacity) {
      packed.emplace_back();
    }
    packed.back().add(rows[i], i);
  }
  return packed;
}

// What the loss is divided by.
double count_targets(const Json& rows) {
  double count = 0;
  for (const Json& row : rows) {
    if (row.contains("class_weights")) {
      for (const size_t tag : row["target_ids"]) count += row["class_weights"][tag].get<double>();
    } else {
      count += row.contains("target_rows") ? double(row["target_rows"].size())
                                           : row.value("weight", 1.0);
    }
  }
  return count;
}

ModelConfig config_in(const std::filesystem::path& folder) {
  return parse_config(read_small_file(folder / "config.json"), "config.json");
}

class GoldenSteps : public testing::TestWithParam<Case> {
 protected:
  explicit GoldenSteps(const std::string& file)
      : all_(std::filesystem::path(SNUG_SOURCE_DIR) / "tests/golden"),
        steps_(parse_json(read_small_file(all_ / file), file)) {}

  virtual void load(Engine& engine) const = 0;

  bool has_targets() const {
    return GetParam().head != Head::kClassifier && GetParam().head != Head::kSpans;
  }

  std::unique_ptr<Engine> make_engine(Purpose purpose, Plan& plan) const {
    return make_engine(purpose, GetParam().capacity, plan);
  }
  std::unique_ptr<Engine> make_engine(Purpose purpose, int64_t capacity, Plan& plan) const {
    PlanRequest request =
        test_request(*model_, {.batch_size = 7, .longest = 40, .step_tokens = 106}, loss_);
    request.graph.purpose = purpose;
    request.pinned_capacity = capacity;
    request.pinned_choice = {
        .recompute = purpose == Purpose::kTraining ? GetParam().recompute : Recomputation(),
        .head_chunk = GetParam().head_chunk};
    plan = make_plan(request);
    auto engine = std::make_unique<CpuEngine>(*model_, plan, /*seed=*/1);
    load(*engine);
    engine->weights_changed();
    return engine;
  }

  // Forward and backward of one step.
  void accumulate(Engine& engine, const Json& rows) const {
    accumulate(engine, rows, GetParam().capacity);
  }
  void accumulate(Engine& engine, const Json& rows, int64_t capacity) const {
    engine.begin(count_targets(rows));
    for (const MicroBatch& micro : pack(rows, size_t(capacity))) engine.accumulate(micro.view());
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
      EXPECT_NEAR(result.loss, steps_["losses"][step].get<double>(), 1e-5 * result.loss)
          << "step " << step;
      EXPECT_NEAR(result.gradient_norm, steps_["gradient_norms"][step].get<double>(),
                  1e-4 * result.gradient_norm)
          << "step " << step;
    }
  }

  std::vector<float> logits(Purpose purpose) const {
    Plan plan;
    const auto engine = make_engine(purpose, plan);
    std::vector<float> logits;
    for (const MicroBatch& micro : pack(steps_["batches"][0], size_t(GetParam().capacity))) {
      engine->score(micro.view());
      const std::span<const float> result = engine->result();
      logits.insert(logits.end(), result.begin(), result.end());
    }
    return logits;
  }

  // Norms and weighted sums of the gradients of the first parameters.
  void expect_gradients(size_t parameters) const;

  std::filesystem::path all_;
  Json steps_;
  LossOptions loss_;
  std::unique_ptr<Model> model_;
};

class Golden : public GoldenSteps {
 protected:
  Golden()
      : GoldenSteps(std::string(GetParam().model) + "/steps.json"),
        folder_(all_ / GetParam().model) {
    model_ = make_model(config_in(folder_), GetParam().head);
  }

  void load(Engine& engine) const override {
    load_weights(WeightFolder(folder_), *model_, [&](size_t i) { return engine.weight(i); }, {});
  }

  std::filesystem::path folder_;
};

// A student of one folder and a teacher of another.
class DistilledGolden : public GoldenSteps {
 protected:
  DistilledGolden()
      : GoldenSteps(std::string(GetParam().model) + "/steps.json"),
        student_(all_ / steps_["student"].get<std::string>()),
        teacher_(all_ / steps_["teacher"].get<std::string>()) {
    model_ = make_distilled({config_in(student_), config_in(teacher_)}, GetParam().head,
                            {steps_["temperature"], steps_["alpha"]});
  }

  size_t first_of_teacher() const { return model_->student().parameters().size(); }
  void load(Engine& engine) const override {
    const auto memory = [&](size_t i) { return engine.weight(i); };
    load_weights(WeightFolder(student_), model_->student(), memory, {});
    load_weights(WeightFolder(teacher_), *model_->teacher(),
                 [&](size_t i) { return memory(first_of_teacher() + i); }, {});
  }

  std::filesystem::path student_, teacher_;
};

// A model of another folder with the head of another task, whose weights are in the file where that
// folder lacks them.
class HeadGolden : public GoldenSteps {
 protected:
  HeadGolden()
      : GoldenSteps("heads/" + std::string(GetParam().model) + ".json"),
        base_(all_ / steps_["base"].get<std::string>()) {
    ModelConfig config = config_in(base_);
    config.labels.assign(steps_["outputs"].get<size_t>(), "");
    const Json& row = steps_["batches"][0][0];
    config.problem = row.contains("labels")    ? Problem::kManyLabels
                     : row.contains("numbers") ? Problem::kNumbers
                                               : Problem::kOneLabel;
    config.classifier_dropout = config.answer_dropout = 0;
    config_ = config;
    loss_ = {.label_smoothing = steps_["smoothing"], .weighted = steps_["weighted"]};
    model_ = make_model(config, GetParam().head);
  }

  void load(Engine& engine) const override {
    load_weights(WeightFolder(base_), *model_, [&](size_t i) { return engine.weight(i); },
                 {.ignore_mismatched_sizes = true});
    size_t found = 0;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      const auto own = steps_["weights"].find(model_->parameters()[i].parts[0].name);
      if (own == steps_["weights"].end()) continue;
      const auto values = own->get<std::vector<float>>();
      ASSERT_EQ(int64_t(values.size()), model_->parameters()[i].size());
      engine.weight(i).write(0, std::as_bytes(std::span(values)));
      ++found;
    }
    ASSERT_EQ(found, steps_["weights"].size());
  }

  std::filesystem::path base_;
  ModelConfig config_;
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
  const auto got = logits(has_targets() ? Purpose::kLogits : Purpose::kScoring);
  const auto expected = read(SafetensorsFile(folder_ / "expected.safetensors"), "logits");
  ASSERT_EQ(expected.size(), got.size());
  EXPECT_LE(distance(expected, got), 1e-5 * norm_of(expected));
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
      // The gradient of the keys' bias is zero in exact arithmetic (softmax ignores it), so what is
      // left is rounding of the size of the whole gradient's: that share is allowed on top.
      EXPECT_LE(distance(want, got), 1e-5 * norm_of(want) + 1e-7 * total) << part.name;
      EXPECT_GT(norm_of(want), 0) << part.name << " is not tested by this file";
      ++compared;
    }
  }
  EXPECT_EQ(compared + 1, expected.tensors().size()) << "every tensor of the file is compared";
}

TEST_P(Golden, TenLossesOfAdamW) { expect_ten_losses(); }

void GoldenSteps::expect_gradients(size_t parameters) const {
  Plan plan;
  const auto engine = make_engine(Purpose::kTraining, plan);
  accumulate(*engine, steps_["batches"][0]);
  const Json& expected = steps_["gradients"];
  const double total = steps_["gradient_norms"][0];
  size_t compared = 0;
  for (size_t i = 0; i < parameters; ++i) {
    const Parameter& parameter = model_->parameters()[i];
    std::vector<float> gradient(size_t(parameter.size()));
    engine->gradient(i).read(0, std::as_writable_bytes(std::span(gradient)));
    std::span<const float> ours = gradient;
    for (const ParameterPart& part : parameter.parts) {
      const auto got = ours.first(size_t(part.rows * (parameter.is_vector ? 1 : parameter.cols)));
      ours = ours.subspan(got.size());
      // As above.
      const double norm = expected.at(part.name)[0], tolerance = 1e-5 * norm + 1e-7 * total;
      double sum = 0;
      for (size_t n = 0; n < got.size(); ++n) sum += double(got[n]) * std::cos(double(n));
      EXPECT_NEAR(norm_of(got), norm, tolerance) << part.name;
      EXPECT_NEAR(sum, expected.at(part.name)[1].get<double>(),
                  tolerance * std::sqrt(double(got.size())))
          << part.name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, expected.size());
}

TEST_P(HeadGolden, Logits) {
  const auto got = logits(Purpose::kScoring), expected = steps_["logits"].get<std::vector<float>>();
  ASSERT_EQ(expected.size(), got.size());
  EXPECT_LE(distance(expected, got), 1e-5 * norm_of(expected));
}

TEST_P(HeadGolden, EveryGradient) { expect_gradients(model_->parameters().size()); }

TEST_P(HeadGolden, TenLossesOfAdamW) { expect_ten_losses(); }

TEST_P(HeadGolden, WhatHasNoLabelAddsNothing) {
  const Json& rows = steps_["batches"][0];
  if (rows[0].contains("labels")) return;  // no classes are a label too
  const auto step = [&](bool more) {
    Plan plan;
    const auto engine = make_engine(Purpose::kTraining, plan);
    accumulate(*engine, rows);
    MicroBatch unlabelled;
    unlabelled.rows.add(rows[4]["ids"].get<std::vector<int32_t>>(), {}, -1, 7);
    // As a number: NaN.
    unlabelled.labels.assign(size_t(label_words(model_->config(), model_->head(), loss_)), -1);
    if (more) engine->accumulate(unlabelled.view());
    return update(*engine, 1);
  };
  const StepResult plain = step(false), more = step(true);
  EXPECT_EQ(more.loss, plain.loss);
  EXPECT_EQ(more.gradient_norm, plain.gradient_norm);
}

TEST_P(HeadGolden, DropoutDoesNotKnowThePacking) {
  config_.embedding_dropout = config_.hidden_dropout = config_.attention_dropout = 0.1;
  config_.classifier_dropout = 0.3;
  model_ = make_model(config_, GetParam().head);
  const auto step = [&](int64_t capacity) {
    Plan plan;
    const auto engine = make_engine(Purpose::kTraining, capacity, plan);
    accumulate(*engine, steps_["batches"][0], capacity);
    return update(*engine, 1);
  };
  const StepResult one = step(GetParam().capacity), other = step(45);
  EXPECT_NEAR(one.loss, other.loss, 1e-5 * other.loss);
  EXPECT_NEAR(one.gradient_norm, other.gradient_norm, 1e-5 * other.gradient_norm);
  EXPECT_GT(std::abs(one.loss / steps_["losses"][0].get<double>() - 1), 1e-3)
      << "there is no dropout";
}

TEST_P(DistilledGolden, EveryGradient) { expect_gradients(first_of_teacher()); }

TEST_P(DistilledGolden, TenLossesOfAdamW) { expect_ten_losses(); }

INSTANTIATE_TEST_SUITE_P(
    Plans, DistilledGolden,
    testing::Values(Case{"distilled-bert-tiny", Head::kClassifier, 106, {}},
                    Case{"distilled-bert-tiny", Head::kClassifier, 57, whole(2)},
                    Case{"distilled-bert-mlm-tiny", Head::kMaskedLm, 106, {}, 106},
                    Case{"distilled-bert-mlm-tiny", Head::kMaskedLm, 57, whole(3), 5},
                    Case{"distilled-gpt2-tiny", Head::kCausalLm, 106, {}, 106},
                    Case{"distilled-gpt2-tiny", Head::kCausalLm, 57, whole(3), 7}));

// Each as one micro-batch, as several with much recomputed, and some as many.
INSTANTIATE_TEST_SUITE_P(
    Plans, HeadGolden,
    testing::Values(
        Case{"bert-tag", Head::kTagger, 106, {}}, Case{"bert-tag", Head::kTagger, 40, {}},
        Case{"bert-tag", Head::kTagger, 57, whole(3)}, Case{"roberta-tag", Head::kTagger, 106, {}},
        Case{"roberta-tag", Head::kTagger, 57, whole(2)}, Case{"gpt2-tag", Head::kTagger, 106, {}},
        Case{"gpt2-tag", Head::kTagger, 57, whole(2)}, Case{"bert-qa", Head::kSpans, 106, {}},
        Case{"bert-qa", Head::kSpans, 40, {}}, Case{"bert-qa", Head::kSpans, 57, whole(3)},
        Case{"distilbert-tag", Head::kTagger, 106, {}},
        Case{"distilbert-qa", Head::kSpans, 57, whole(2)},
        Case{"roberta-qa", Head::kSpans, 106, {}}, Case{"roberta-qa", Head::kSpans, 57, whole(2)},
        Case{"gpt2-qa", Head::kSpans, 106, {}}, Case{"gpt2-qa", Head::kSpans, 57, whole(2)},
        Case{"bert-labels", Head::kClassifier, 106, {}},
        Case{"bert-labels", Head::kClassifier, 57, whole(2)},
        Case{"roberta-labels", Head::kClassifier, 106, {}},
        Case{"roberta-labels", Head::kClassifier, 40, whole(3)},
        Case{"bert-number", Head::kClassifier, 106, {}},
        Case{"bert-number", Head::kClassifier, 57, whole(2)},
        Case{"roberta-numbers", Head::kClassifier, 106, {}},
        Case{"roberta-numbers", Head::kClassifier, 57, whole(3)},
        Case{"gpt2-label", Head::kClassifier, 106, {}},
        Case{"gpt2-label", Head::kClassifier, 40, {}},
        Case{"gpt2-label", Head::kClassifier, 57, whole(3)},
        Case{"bert-smoothed", Head::kClassifier, 106, {}},
        Case{"bert-smoothed", Head::kClassifier, 57, whole(2)},
        Case{"roberta-weighted", Head::kClassifier, 106, {}},
        Case{"roberta-weighted", Head::kClassifier, 40, whole(2)},
        Case{"bert-tag-weighted", Head::kTagger, 106, {}},
        Case{"bert-tag-weighted", Head::kTagger, 40, whole(2)}));

INSTANTIATE_TEST_SUITE_P(Plans, Golden,
                         testing::Values(Case{"bert-tiny", Head::kClassifier, 106, {}},
                                         Case{"bert-tiny", Head::kClassifier, 40, {}},
                                         Case{"bert-tiny", Head::kClassifier, 106, whole(3)},
                                         Case{"bert-tiny", Head::kClassifier, 57, whole(2)},
                                         Case{"roberta-tiny", Head::kClassifier, 106, {}},
                                         Case{"roberta-tiny", Head::kClassifier, 57, whole(2)},
                                         Case{"bert-mlm-tiny", Head::kMaskedLm, 106, {}, 106},
                                         Case{"bert-mlm-tiny", Head::kMaskedLm, 57, whole(3), 5},
                                         Case{"roberta-mlm-tiny", Head::kMaskedLm, 106, {}, 7},
                                         Case{"distilbert-tiny", Head::kClassifier, 106, {}},
                                         Case{"distilbert-tiny", Head::kClassifier, 57, whole(2)},
                                         Case{"distilbert-mlm-tiny", Head::kMaskedLm, 106, {}, 106},
                                         Case{"distilbert-mlm-tiny", Head::kMaskedLm, 57, whole(3),
                                              5},
                                         Case{"gpt2-tiny", Head::kCausalLm, 106, {}, 106},
                                         Case{"gpt2-tiny", Head::kCausalLm, 40, {}, 13},
                                         Case{"gpt2-tiny", Head::kCausalLm, 106, whole(3), 32},
                                         Case{"gpt2-tiny", Head::kCausalLm, 57, whole(2), 1}));

}  // namespace
}  // namespace snug
