// Time of a whole training step (forward, backward, clipping, AdamW; dropout 0.1) of models of the
// usual sizes with random weights and random token ids. One JSON line per case.
//   step_bench 8x128 sst2            cases: NxL (N texts of L tokens) or sst2 (32 texts with the
//   lengths SST-2 has) DEVICE=cuda step_bench large:16x512    the same for BERT-large, on a GPU;
//   MEMORY states a budget in bytes step_bench gpt2:1x512 gpt2-medium:8x1024    causal language
//   models of 124M and 355M parameters CAPACITY pins the tokens of a micro-batch, OFFLOAD what lies
//   outside of the device (as --offload), RECOMPUTE=all recomputes everything, OPTIM names the
//   optimizer, FREEZE an entry of --freeze, LORA a rank of adapters
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "data/batch_builder.h"
#include "model/config.h"
#include "model/weights.h"
#include "train/platform.h"

namespace snug {
namespace {

// Lengths of SST-2 sentences in tokens: mean about 25, 4 to 66. The peer draws the same ones
// (bench/peer_step.py).
std::vector<int64_t> lengths_of(const std::string& name) {
  if (name != "sst2") {
    const size_t x = name.find('x');
    return std::vector<int64_t>(std::stoul(name.substr(0, x)), std::stol(name.substr(x + 1)));
  }
  return {8,  26, 10, 38, 16, 22, 47, 13, 30, 19, 61, 11, 24, 7,  34, 28,
          15, 42, 20, 9,  33, 18, 25, 52, 12, 29, 21, 37, 14, 23, 17, 36};
}

struct Case {
  ModelConfig config;
  Head head = Head::kClassifier;
  std::vector<int64_t> lengths;
};

Case case_of(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string model = colon == std::string::npos ? "base" : name.substr(0, colon);
  const bool gpt2 = model.starts_with("gpt2"), xl = model == "gpt2-xl",
             large = model == "large" || model == "gpt2-medium";
  ModelConfig config = default_config(gpt2 ? Family::kGpt2 : Family::kBert);
  config.vocab_size = gpt2 ? 50257 : 30522;
  config.hidden_size = xl ? 1600 : large ? 1024 : 768;
  config.num_hidden_layers = xl ? 48 : large ? 24 : 12;
  config.num_attention_heads = xl ? 25 : large ? 16 : 12;
  config.intermediate_size = 4 * config.hidden_size;
  config.max_position_embeddings = gpt2 ? 1024 : 512;
  config.labels = {"0", "1"};
  return {config, gpt2 ? Head::kCausalLm : Head::kClassifier,
          lengths_of(colon == std::string::npos ? name : name.substr(colon + 1))};
}

// The texts of a step in micro-batches of at most `capacity` tokens.
std::vector<BatchBuilder> random_step(const Case& c, int64_t capacity, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<BatchBuilder> step(1);
  for (const int64_t length : c.lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = int32_t(1000 + random() % 29000);
    if (step.back().dims().tokens + length > capacity) step.emplace_back();
    step.back().add(ids, {}, int32_t(random() % 2));
    if (c.head == Head::kCausalLm) step.back().predict_next_tokens();
  }
  return step;
}

const char* environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

void fill_weights(Engine& engine, const Model& model) {
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    const Block block = engine.weight(i);
    in_pieces(size_t(parameter.size()), std::span(buffer),
              [&](size_t first, std::span<float> piece) {
                initialize(parameter, first, piece, {});
                block.write(first * sizeof(float), std::as_bytes(piece));
              });
  }
  engine.weights_changed();
}

// Seconds between the results of steps, after `warm_up` of them; sorted. on_first is called after
// the first step.
std::vector<double> time_steps(Engine& engine, const std::vector<std::vector<BatchBuilder>>& steps,
                               size_t targets, int warm_up, int timed,
                               const std::function<void()>& on_first) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  Clock::time_point last = Clock::now();
  int running = 0;
  const auto finish = [&] {
    SNUG_CHECK(engine.finish().applied);
    --running;
    if (seconds.empty()) on_first();
    const auto now = Clock::now();
    seconds.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
  };
  // The last results come at once, when nothing else is left to be queued: they are not timed.
  const int ahead = engine.updates_ahead();
  for (int step = 0; step < warm_up + timed + ahead; ++step) {
    engine.begin(targets);
    for (const BatchBuilder& micro : steps[size_t(step) % steps.size()]) {
      engine.accumulate(micro.view());
    }
    engine.update({.learning_rate = 1e-5, .step = step + 1}, 1.0);
    ++running;
    while (running > engine.updates_ahead()) finish();
  }
  while (running > 0) finish();
  seconds.erase(seconds.begin(), seconds.begin() + warm_up);
  seconds.resize(size_t(timed));
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

void run(const std::string& name) {
  const Case c = case_of(name);
  const std::vector<int64_t>& lengths = c.lengths;
  CommonOptions options;
  options.device = environment("DEVICE", "cpu");
  options.precision = environment("PRECISION", "auto");
  options.threads = std::atoi(environment("THREADS", "0"));
  const auto platform = open_platform(options);
  Tuning tuning;
  if (const char* entry = std::getenv("FREEZE")) tuning.freeze = {entry};
  tuning.lora.rank = std::stol(environment("LORA", "0"));
  const auto model = make_model(c.config, c.head, tuning);
  PlanRequest request;
  request.model = model.get();
  request.graph.compute = platform->compute_type(options.precision);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  request.workload = {int64_t(lengths.size()), *std::ranges::max_element(lengths), tokens,
                      tokens / int64_t(lengths.size())};
  if (c.head == Head::kCausalLm) request.workload.target_rule = TargetRule::kEveryToken;
  if (const char* capacity = std::getenv("CAPACITY")) request.pinned_capacity = std::stol(capacity);
  if (const char* offload = std::getenv("OFFLOAD")) {
    PlanChoice asked;
    if (!parse_offload(offload, asked)) fail(ErrorKind::kUsage, "OFFLOAD is {}", offload);
    request.pinned_offload = asked.offload;
    request.activations_outside = asked.activations_outside;
  }
  if (std::string(environment("RECOMPUTE", "")) == "all") {
    request.pinned_recompute = Recomputation(size_t(model->layers()) + 1, Parts::all());
  }
  request.optimizer = parse_optimizer(environment("OPTIM", "adamw"), 0.9);
  request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
  std::optional<uint64_t> budget;
  if (const char* memory = std::getenv("MEMORY")) budget = std::stoull(memory);
  request.budget_bytes = platform->budget(budget);
  platform->complete(request);
  const Plan plan = make_plan(request);
  if (!plan.fits) {
    fmt::print(
        "{{\"program\": \"snug\", \"case\": \"{}\", \"fits\": false, \"minimum_bytes\": {}}}\n",
        name, plan.minimum_budget_bytes);
    return;
  }
  const auto engine = platform->make_engine(*model, plan, /*seed=*/1);
  fill_weights(*engine, *model);
  const bool gpu = request.device.kind == DeviceKind::kCuda;
  std::vector<std::vector<BatchBuilder>> steps;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    steps.push_back(random_step(c, plan.capacity.tokens, seed));
  }
  uint64_t after_first = 0;
  const int timed = std::atoi(environment("STEPS", gpu ? "50" : "5"));
  const std::vector<double> seconds = time_steps(
      *engine, steps, c.head == Head::kCausalLm ? size_t(tokens) - lengths.size() : lengths.size(),
      gpu ? std::min(10, timed) : 1, timed, [&] { after_first = platform->peak_bytes(); });
  const double median = seconds[seconds.size() / 2];
  fmt::print(
      "{{\"program\": \"snug\", \"case\": \"{}\", \"device\": \"{}\", \"precision\": \"{}\", "
      "\"threads\": {}, "
      "\"tokens\": {}, \"ms\": {:.3f}, \"best_ms\": {:.3f}, \"tokens_per_second\": {:.1f}, "
      "\"micro_batch_tokens\": {}, "
      "\"recompute\": \"{}\", \"offload\": \"{}\", \"host_bytes\": {}, \"head_chunk\": {}, "
      "\"converts_weights\": {}, \"budget_bytes\": {}, \"minimum_bytes\": {}, \"predicted_bytes\": "
      "{}, "
      "\"measured_bytes\": {}, \"grown_since_first_step\": {}}}\n",
      name, platform->name(), dtype_name(plan.compute), num_threads(), request.workload.step_tokens,
      median * 1e3, seconds[0] * 1e3, double(request.workload.step_tokens) / median,
      plan.capacity.tokens, describe(plan.choice.recompute, plan.layers), offload_text(plan.choice),
      plan.layout.outside_bytes, plan.choice.head_chunk, plan.choice.converts_weights,
      plan.budget_bytes, plan.minimum_budget_bytes, plan.peak_bytes, platform->peak_bytes(),
      platform->peak_bytes() - after_first);
  std::fflush(stdout);
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  snug::sleep_at_barriers(argv);  // as the program does
  try {
    for (int i = 1; i < argc; ++i) snug::run(argv[i]);
  } catch (const snug::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return int(error.kind());
  }
}
