// How fast the data pipeline delivers packed batches: tokens a second from a tokenized cache, shuffled, with no model behind
// it.   pipeline_bench MODEL-FOLDER DATA-FILE [BATCH-SIZE]
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "core/error.h"
#include "core/threads.h"
#include "data/batches.h"
#include "train/model_folder.h"
#include "train/platform.h"

namespace snug {
namespace {

void run(const std::string& model, const std::string& file, uint64_t batch_size) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
  const ModelFolder folder = open_model_folder(model);
  DatasetOptions options;
  options.encoding.max_length = size_t(folder.config.max_length());
  options.cache_folder = cache_folder({});
  options.threads = num_threads();
  auto start = Clock::now();
  const Dataset data = Dataset::open(file, *folder.tokenizer, options);
  const double opening = seconds_since(start);
  BatchOptions batches;
  batches.batch_size = batch_size;
  batches.capacity_tokens = int64_t(batch_size) * int64_t(data.longest());
  batches.last_step = 3 * steps_per_epoch(data.rows(), batch_size);
  BatchStream stream(data, batches);
  uint64_t tokens = 0, examples = 0;
  start = Clock::now();
  for (const StepBatch* step; stream.next(step);) tokens += step->tokens, examples += step->examples;
  const double seconds = seconds_since(start);
  fmt::print("{{\"rows\": {}, \"open_seconds\": {:.2f}, \"tokens_per_second\": {:.0f}, \"examples_per_second\": {:.0f}}}\n", data.rows(),
             opening, double(tokens) / seconds, double(examples) / seconds);
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} MODEL-FOLDER DATA-FILE [BATCH-SIZE]\n", argv[0]);
    return 2;
  }
  try {
    snug::set_num_threads(0);
    snug::run(argv[1], argv[2], argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 32);
  } catch (const snug::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return int(error.kind());
  }
}
