#include "train/rehearsal.h"

#include <vector>

#include "core/process_memory.h"
#include "core/threads.h"
#include "data/batch_builder.h"
#include "model/config.h"
#include "model/model.h"
#include "plan/planner.h"
#include "runtime/cpu_engine.h"

namespace snug {
namespace {

// Two sequences, long enough to reach the blocked paths of the kernels.
constexpr int64_t kLength = 40, kSequences = 2, kTokens = kLength * kSequences;
// Makes the miniature larger than the buffers of the threads that tokenize: 2 MiB a thread.
constexpr int64_t kWordsPerThread = 1024;

ModelConfig miniature() {
  ModelConfig config;
  config.vocab_size = kWordsPerThread * num_threads();
  config.hidden_size = 128;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.intermediate_size = 256;
  config.max_position_embeddings = kLength;
  config.labels = {"0", "1"};
  return config;
}

}  // namespace

void rehearse() {
  touch_libraries();
  const auto model = make_model(miniature(), Head::kClassifier);
  PlanRequest request;
  request.model = model.get();
  request.workload = {.batch_size = kSequences, .longest = kLength, .step_tokens = kTokens};
  request.process.buffer_bytes = [](const Dims&) { return uint64_t{0}; };
  request.budget_bytes = uint64_t{1} << 40;
  request.device = {.kind = DeviceKind::kCpu, .threads = num_threads()};
  request.pinned_recompute = Recomputation(2, Parts::all());
  const Plan plan = make_plan(request);
  CpuEngine engine(*model, plan, /*seed=*/1);
  BatchBuilder data;
  for (int64_t s = 0; s < kSequences; ++s) {
    data.add(std::vector<int32_t>(size_t(kLength), int32_t(1 + s)), {}, 0);
  }
  const Batch batch = data.view();
  engine.begin(kSequences);
  engine.accumulate(batch);
  engine.update({.learning_rate = 0.1, .step = 1}, 1.0);
  engine.score(batch);
}

Overhead measure_overhead() {
  trim_allocator();
  return {resident_bytes(), peak_resident_bytes()};
}

}  // namespace snug
