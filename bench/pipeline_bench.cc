// How fast the data pipeline is: tokens a second while the cache is built from the file, and packed
// batches, shuffled, from the cache; and whether every epoch visits every row once, also where a
// stream begins in its middle, as after a restart.
//   pipeline_bench MODEL-FOLDER DATA-FILES [BATCH-SIZE [EPOCHS]]
//   pipeline_bench --beside-training MODEL-FOLDER DATA-FILES [BATCH-SIZE [EPOCHS]]
// The second form measures both, on one thread each, while the model is trained on the same files
// by another thread, which has a pipeline of its own; and how fast that training is with and
// without company. `taskset -c 0,1` keeps all of it on two cores.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/philox.h"
#include "core/progress.h"
#include "core/threads.h"
#include "data/batches.h"
#include "data/data_files.h"
#include "snug/snug.h"
#include "train/model_folder.h"
#include "train/platform.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Arguments {
  bool beside_training = false;
  std::string model, files;
  uint64_t batch_size = 32, epochs = 3;
};

// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder()
      : path_(fs::temp_directory_path() / fmt::format("snug-pipeline-bench-{}", ::getpid())) {
    fs::create_directories(path_);
  }
  ~ScratchFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A run of the whole program on one thread, for as long as the object lives.
class Training {
 public:
  Training(const Arguments& arguments, const fs::path& output)
      : thread_([this, options = options(arguments, output)] { work(options); }) {}
  ~Training() {
    stopping_ = true;
    thread_.join();
  }

  // Tokens a second over a time in which `action` runs.
  template <class Action>
  double speed_during(const Action& action) {
    while (tokens_ == 0 && !failed_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto start = Clock::now();
    const uint64_t before = tokens_;
    action();
    if (failed_) fail(ErrorKind::kUsage, "the training beside has ended: {}", error_);
    return double(tokens_ - before) / seconds_since(start);
  }

 private:
  struct Stop {};

  static TrainOptions options(const Arguments& arguments, const fs::path& output) {
    TrainOptions options;
    options.model = arguments.model;
    options.train = arguments.files;
    options.output_dir = output / "training";
    options.batch_size = 32;
    options.max_steps = int64_t{1} << 40;
    options.save_strategy = "no";
    options.device = "cpu";
    options.threads = 1;
    return options;
  }

  void work(const TrainOptions& options) {
    try {
      train(options, [this](const StepMetrics& step) {
        if (stopping_) throw Stop{};
        tokens_ += step.tokens;
      });
    } catch (const Stop&) {
    } catch (const std::exception& error) {
      error_ = error.what();
      failed_ = true;
    }
  }

  std::atomic<uint64_t> tokens_ = 0;
  std::atomic<bool> stopping_ = false, failed_ = false;
  std::string error_;
  std::thread thread_;
};

Dataset open_data(const Arguments& arguments, const ModelFolder& folder, const fs::path& caches,
                  int threads) {
  DatasetOptions options;
  options.encoding.max_length = size_t(folder.config.max_length());
  options.cache_folder = caches;
  options.threads = threads;
  return Dataset::open(find_data_files("DATA-FILES", arguments.files).files, *folder.tokenizer,
                       options);
}

struct Delivered {
  double tokens_per_second = 0, examples_per_second = 0;
  bool every_row_once = false;
};

Delivered deliver(const Dataset& data, const Arguments& arguments) {
  BatchOptions batches;
  batches.batch_size = arguments.batch_size;
  batches.capacity_tokens = int64_t(arguments.batch_size) * int64_t(data.longest());
  const uint64_t steps = arguments.epochs * steps_per_epoch(data.rows(), arguments.batch_size);
  uint64_t tokens = 0, examples = 0, expected = 0;
  std::vector<uint64_t> checksums(arguments.epochs);
  const auto start = Clock::now();
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
  return {double(tokens) / seconds, double(examples) / seconds,
          std::ranges::all_of(checksums, [&](uint64_t sum) { return sum == expected; })};
}

void run(const Arguments& arguments) {
  const ModelFolder folder = open_model_folder(arguments.model);
  const auto start = Clock::now();
  const Dataset data = open_data(arguments, folder, cache_folder({}), num_threads());
  const double opening = seconds_since(start);
  const Delivered delivered = deliver(data, arguments);
  fmt::print(
      "{{\"rows\": {}, \"tokens\": {}, \"open_seconds\": {:.2f}, \"tokens_per_second\": {:.0f}, "
      "\"examples_per_second\": {:.0f}, "
      "\"every_row_once\": {}}}\n",
      data.rows(), data.tokens(), opening, delivered.tokens_per_second,
      delivered.examples_per_second, delivered.every_row_once);
}

void run_beside_training(const Arguments& arguments) {
  set_quiet(true);
  const ModelFolder folder = open_model_folder(arguments.model);
  const ScratchFolder scratch;
  Training training(arguments, scratch.path());
  const double alone =
      training.speed_during([] { std::this_thread::sleep_for(std::chrono::seconds(3)); });
  const auto start = Clock::now();
  std::optional<Dataset> data;
  const double beside_reading = training.speed_during(
      [&] { data = open_data(arguments, folder, scratch.path() / "caches", 1); });
  const double reading = seconds_since(start);
  Delivered delivered;
  const double beside_batches =
      training.speed_during([&] { delivered = deliver(*data, arguments); });
  fmt::print(
      "{{\"rows\": {}, \"tokens\": {}, \"from_file_tokens_per_second\": {:.0f}, "
      "\"batches_tokens_per_second\": {:.0f}, "
      "\"every_row_once\": {}, \"training_tokens_per_second\": {{\"alone\": {:.0f}, "
      "\"beside_reading\": {:.0f}, \"beside_batches\": "
      "{:.0f}}}}}\n",
      data->rows(), data->tokens(), double(data->tokens()) / reading, delivered.tokens_per_second,
      delivered.every_row_once, alone, beside_reading, beside_batches);
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  snug::Arguments arguments;
  arguments.beside_training = !words.empty() && words[0] == "--beside-training";
  if (arguments.beside_training) words.erase(words.begin());
  if (words.size() < 2) {
    fmt::print(stderr,
               "usage: {} [--beside-training] MODEL-FOLDER DATA-FILES [BATCH-SIZE [EPOCHS]]\n",
               argv[0]);
    return 2;
  }
  arguments.model = words[0];
  arguments.files = words[1];
  if (words.size() > 2) arguments.batch_size = std::strtoull(words[2].c_str(), nullptr, 10);
  if (words.size() > 3) arguments.epochs = std::strtoull(words[3].c_str(), nullptr, 10);
  try {
    snug::set_num_threads(0);
    arguments.beside_training ? snug::run_beside_training(arguments) : snug::run(arguments);
  } catch (const snug::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return int(error.kind());
  }
}
