// Time of a whole training step (forward, backward, clipping, AdamW; dropout 0.1) of BERT-base-sized models with random
// weights and random token ids. One JSON line per case.
//   step_bench 8x128 sst2        cases: NxL (N texts of L tokens) or sst2 (32 texts with the lengths SST-2 has)
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "core/threads.h"
#include "data/batch_builder.h"
#include "model/config.h"
#include "model/weights.h"
#include "runtime/cpu_engine.h"

namespace snug {
namespace {

constexpr int kWarmUp = 1, kTimed = 5;

// Lengths of SST-2 sentences in tokens: mean about 25, 4 to 66. The peer draws the same ones (bench/peer_step.py).
std::vector<int64_t> lengths_of(const std::string& name) {
  if (name != "sst2") {
    const size_t x = name.find('x');
    return std::vector<int64_t>(std::stoul(name.substr(0, x)), std::stol(name.substr(x + 1)));
  }
  return {8, 26, 10, 38, 16, 22, 47, 13, 30, 19, 61, 11, 24, 7, 34, 28, 15, 42, 20, 9, 33, 18, 25, 52, 12, 29, 21, 37, 14, 23, 17, 36};
}

BertConfig base_config() {
  BertConfig config;
  config.vocab_size = 30522;
  config.hidden_size = 768;
  config.num_hidden_layers = 12;
  config.num_attention_heads = 12;
  config.intermediate_size = 3072;
  config.max_position_embeddings = 512;
  config.labels = {"0", "1"};
  return config;
}

BatchBuilder random_batch(const std::vector<int64_t>& lengths) {
  std::mt19937 random(1);
  BatchBuilder batch;
  for (const int64_t length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = int32_t(1000 + random() % 29000);
    batch.add(ids, {}, int32_t(random() % 2));
  }
  return batch;
}

void run(const std::string& name) {
  const BatchBuilder data = random_batch(lengths_of(name));
  const Batch batch = data.view();
  const auto model = make_bert(base_config(), Head::kClassifier);
  PlanRequest request;
  request.model = model.get();
  request.workload = {batch.dims.sequences, batch.dims.longest, batch.dims.tokens};
  request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
  request.budget_bytes = uint64_t{1} << 40;
  request.device = {.kind = DeviceKind::kCpu, .threads = num_threads()};
  const Plan plan = make_plan(request);
  CpuEngine engine(*model, plan, /*seed=*/1);
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    std::vector<float> values(size_t(model->parameters()[i].size()));
    initialize(model->parameters()[i], 0, values, {});
    engine.parameter(Region::kWeights, i).write(0, std::as_bytes(std::span(values)));
  }
  std::vector<double> times;
  for (int step = 0; step < kWarmUp + kTimed; ++step) {
    const auto start = std::chrono::steady_clock::now();
    engine.begin(uint64_t(batch.dims.sequences));
    engine.accumulate(batch);
    engine.update({.step = step + 1}, 1.0);
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  times.erase(times.begin(), times.begin() + kWarmUp);
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  fmt::print("{{\"program\": \"snug\", \"case\": \"{}\", \"threads\": {}, \"tokens\": {}, \"ms\": {:.1f}, \"tokens_per_second\": {:.1f}}}\n",
             name, num_threads(), batch.dims.tokens, median * 1e3, double(batch.dims.tokens) / median);
  std::fflush(stdout);
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  const char* threads = std::getenv("THREADS");
  snug::set_num_threads(threads != nullptr ? std::atoi(threads) : 0);
  for (int i = 1; i < argc; ++i) snug::run(argv[i]);
}
