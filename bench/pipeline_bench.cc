// How fast the data pipeline is, with no model behind it: tokens a second while the cache is built from the file, and packed
// batches, shuffled, from the cache; and whether every epoch visits every row once, also where a stream begins in its
// middle, as after a restart.   pipeline_bench MODEL-FOLDER DATA-FILES [BATCH-SIZE [EPOCHS]]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "core/error.h"
#include "core/philox.h"
#include "core/threads.h"
#include "data/batches.h"
#include "data/data_files.h"
#include "train/model_folder.h"
#include "train/platform.h"

namespace snug {
namespace {

void run(const std::string& model, const std::string& files, uint64_t batch_size, uint64_t epochs) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
  const ModelFolder folder = open_model_folder(model);
  DatasetOptions options;
  options.encoding.max_length = size_t(folder.config.max_length());
  options.cache_folder = cache_folder({});
  options.threads = num_threads();
  auto start = Clock::now();
  const Dataset data = Dataset::open(find_data_files("DATA-FILES", files).files, *folder.tokenizer, options);
  const double opening = seconds_since(start);
  BatchOptions batches;
  batches.batch_size = batch_size;
  batches.capacity_tokens = int64_t(batch_size) * int64_t(data.longest());
  const uint64_t steps = epochs * steps_per_epoch(data.rows(), batch_size);
  uint64_t tokens = 0, examples = 0, expected = 0;
  std::vector<uint64_t> checksums(epochs);
  start = Clock::now();
  for (const uint64_t end : {steps / 3, steps}) {
    batches.first_step = batches.last_step;
    batches.last_step = end;
    BatchStream stream(data, batches);
    for (const StepBatch* step; stream.next(step);) {
      tokens += step->tokens, examples += step->examples;
      checksums[step->epoch] += step->rows_checksum;
    }
  }
  const double seconds = seconds_since(start);
  for (uint64_t row = 0; row < data.rows(); ++row) expected += mix64(row);
  const bool once = std::ranges::all_of(checksums, [&](uint64_t sum) { return sum == expected; });
  fmt::print("{{\"rows\": {}, \"tokens\": {}, \"open_seconds\": {:.2f}, \"tokens_per_second\": {:.0f}, \"examples_per_second\": {:.0f}, "
             "\"every_row_once\": {}}}\n",
             data.rows(), data.tokens(), opening, double(tokens) / seconds, double(examples) / seconds, once);
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} MODEL-FOLDER DATA-FILES [BATCH-SIZE [EPOCHS]]\n", argv[0]);
    return 2;
  }
  try {
    snug::set_num_threads(0);
    snug::run(argv[1], argv[2], argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 32,
              argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 3);
  } catch (const snug::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return int(error.kind());
  }
}
