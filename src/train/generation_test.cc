// Generation at the level of engines: greedy tokens against transformers', the cache against
// reading everything again, and a real trained model whose logits were stored by PyTorch.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "core/file.h"
#include "core/json.h"
#include "data/batch_builder.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/weight_files.h"
#include "model/weights.h"
#include "plan/plan_test_util.h"
#include "runtime/cpu_engine.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// A model from a folder inside a plan of its own.
struct Loaded {
  Loaded(const fs::path& folder, const GraphOptions& graph, int64_t texts, int64_t capacity)
      : model(make_model(parse_config(read_small_file(folder / "config.json"), "config.json"),
                         Head::kCausalLm)) {
    PlanRequest request = test_request(
        *model, {.batch_size = texts, .longest = model->max_length(), .step_tokens = capacity});
    request.graph = graph;
    if (graph.purpose == Purpose::kGeneration) {
      request.workload.target_rule = TargetRule::kLastToken;
    }
    request.pinned_capacity = capacity;
    plan = make_plan(request);
    engine = std::make_unique<CpuEngine>(*model, plan, 1);
    load_weights(WeightFolder(folder), *model, [&](size_t i) { return engine->weight(i); }, {});
    engine->weights_changed();
  }

  std::unique_ptr<Model> model;
  Plan plan;
  std::unique_ptr<Engine> engine;
};

const fs::path kTiny = fs::path(SNUG_SOURCE_DIR) / "tests/golden/gpt2-tiny";

TEST(Generation, GreedyTokensAreThoseOfTransformers) {
  const Json golden = parse_json(read_small_file(kTiny / "steps.json"), "steps.json");
  const auto prompt = golden["prompt"].get<std::vector<int32_t>>(),
             expected = golden["greedy"].get<std::vector<int32_t>>();
  ASSERT_EQ(expected.size(), 200u);
  Loaded loaded(kTiny, {.purpose = Purpose::kGeneration, .context = 256}, 3, 32);
  BatchBuilder batch;
  std::vector<int32_t> text = prompt;
  for (size_t unread = 0; text.size() < prompt.size() + 200;) {
    batch.clear();
    batch.add_to_text(std::span(text).subspan(unread), int32_t(unread), {.place = 2, .number = 0});
    unread = text.size();
    loaded.engine->score(batch.view());
    text.push_back(int32_t(loaded.engine->result()[0]));
  }
  EXPECT_EQ(std::vector<int32_t>(text.begin() + ptrdiff_t(prompt.size()), text.end()), expected);
}

// Two texts side by side with the cache give what each gives alone when it is read anew for every
// token.
TEST(Generation, TheCacheChangesNothing) {
  Loaded cached(kTiny, {.purpose = Purpose::kGeneration, .context = 64}, 2, 16);
  Loaded plain(kTiny, {.purpose = Purpose::kLogits}, 1, 64);
  std::vector<std::vector<int32_t>> texts = {{3, 14, 15, 92, 6, 5}, {35, 8}};
  std::vector<size_t> unread(2);
  for (int step = 0; step < 50; ++step) {
    BatchBuilder batch;
    for (size_t i = 0; i < 2; ++i) {
      batch.add_to_text(std::span(texts[i]).subspan(unread[i]), int32_t(unread[i]),
                        {.place = i, .number = int32_t(i)});
      unread[i] = texts[i].size();
    }
    cached.engine->score(batch.view());
    const auto next = cached.engine->result();
    for (size_t i = 0; i < 2; ++i) {
      BatchBuilder all;
      all.add(texts[i], {}, -1);
      const std::vector<int32_t> last = {int32_t(texts[i].size()) - 1}, id = {0};
      all.predict(last, id);
      plain.engine->score(all.view());
      const auto logits = plain.engine->result();
      const auto best = std::max_element(logits.begin(), logits.end());
      EXPECT_EQ(int32_t(next[2 * i]), int32_t(best - logits.begin()))
          << "step " << step << ", text " << i;
      double sum = 0;
      for (const float x : logits) sum += std::exp(double(x) - double(*best));
      EXPECT_NEAR(next[2 * i + 1], -std::log(sum), 1e-5);
      texts[i].push_back(int32_t(next[2 * i]));
    }
  }
}

std::vector<float> decode_floats(const Json& tensor) {
  static const std::string kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : tensor.at("data").get<std::string>()) {
    const size_t value = kAlphabet.find(c);
    if (value == std::string::npos) continue;
    bits = bits << 6 | uint32_t(value);
    if ((count += 6) >= 8) bytes.push_back(char(bits >> (count -= 8)));
  }
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

// minGPT stores its linear layers [out, in] where Hugging Face's GPT-2 has [in, out], has a head of
// its own, and keeps the causal mask among its weights.
void convert_min_gpt(const Json& model, const fs::path& to) {
  const Json& config = model.at("config");
  const Json out = {{"model_type", "gpt2"},          {"vocab_size", config.at("vocab_size")},
                    {"n_embd", config.at("n_embd")}, {"n_layer", config.at("n_layer")},
                    {"n_head", config.at("n_head")}, {"n_positions", config.at("block_size")},
                    {"tie_word_embeddings", false}};
  std::ofstream(to / "config.json") << out.dump();
  std::vector<TensorEntry> entries;
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, tensor] : model.items()) {
    if (name == "config" || name.ends_with(".attn.bias")) continue;
    auto shape = tensor.at("shape").get<std::vector<int64_t>>();
    std::vector<float> values = decode_floats(tensor);
    if (name.find(".c_") != std::string::npos && shape.size() == 2) {
      const std::vector<float> old = values;
      for (int64_t o = 0; o < shape[0]; ++o) {
        for (int64_t i = 0; i < shape[1]; ++i) {
          values[size_t(i * shape[0] + o)] = old[size_t(o * shape[1] + i)];
        }
      }
      std::swap(shape[0], shape[1]);
    }
    TensorEntry entry;
    entry.name = name;
    entry.shape = shape;
    entries.push_back(entry);
    tensors[name] = std::move(values);
  }
  SafetensorsWriter writer(to / "model.safetensors", entries);
  for (const TensorEntry& entry : entries) writer.write(entry.name, tensors[entry.name]);
  writer.commit();
}

TEST(Generation, ATrainedModelReproducesItsLogits) {
  const char* shared = std::getenv("SNUG_SHARED");
  const fs::path folder =
      fs::path(shared ? shared : SNUG_SOURCE_DIR "/../shared") / "data/weights/gpt-nano-sort";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const fs::path converted =
      fs::temp_directory_path() / fmt::format("snug-gpt-nano-{}", ::getpid());
  fs::create_directories(converted);
  convert_min_gpt(parse_json(read_small_file(folder / "gpt-nano-sort-model.json"), "model"),
                  converted);
  const Json partials =
      parse_json(read_small_file(folder / "gpt-nano-sort-t0-partials.json"), "partials");

  Loaded loaded(converted, {.purpose = Purpose::kLogits}, 3, 33);
  fs::remove_all(converted);
  const auto ids = decode_floats(partials.at("idx"));
  const auto expected = decode_floats(partials.at("lm_head"));
  ASSERT_EQ(ids.size(), 33u);
  BatchBuilder batch;
  for (size_t row = 0; row < 3; ++row) {
    std::vector<int32_t> text, all;
    for (size_t t = 0; t < 11; ++t) {
      text.push_back(int32_t(ids[row * 11 + t])), all.push_back(int32_t(t));
    }
    batch.add(text, {}, -1);
    batch.predict(all, text);
  }
  loaded.engine->score(batch.view());
  const auto logits = loaded.engine->result();
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-4);
}

}  // namespace
}  // namespace snug
