#include "train/calibration.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/threads.h"
#include "data/batch_builder.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kEnoughSeconds = 0.6;    // of one kind of step
constexpr double kLongestSeconds = 12.0;  // then recomputation is not timed but derived
constexpr int64_t kFewTokensCpu = 64, kManyTokensCpu = 256, kFewTokensGpu = 1024,
                  kManyTokensGpu = 8192;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 1);
  }
  return "";
}

// Everything that times depend on.
Json key_of(const Platform& platform, const PlanRequest& request) {
  const ModelConfig& config = request.model->config();
  const bool cpu = request.device.kind == DeviceKind::kCpu;
  return {{"version", 2},
          {"device", cpu ? processor_name() : platform.facts().front().second},
          {"threads", cpu ? num_threads() : 0},
          {"precision", dtype_name(request.graph.compute)},
          {"optimizer", optimizer_name(request.optimizer)},
          {"family", model_type(config.family)},
          {"head", int(request.model->head())},
          {"hidden", config.hidden_size},
          {"heads", config.num_attention_heads},
          {"intermediate", config.intermediate_size},
          {"vocabulary", config.vocab_size},
          {"length", request.workload.mean_length},
          {"masked", request.workload.masked_share}};
}

fs::path file_of(const fs::path& folder, const Json& key) {
  const std::string text = key.dump();
  return folder / fmt::format("speed-{:016x}.json", XXH3_64bits(text.data(), text.size()));
}

// Of one layer or the rest, a pass or a token, in seconds; of the update, a parameter.
struct Measured {
  double pass_layer = 0, pass_rest = 0, token_layer = 0, token_rest = 0, update_parameter = 0;
  std::array<double, kPartNames.size()> again{};
};

// Where only some of it was measured, the rest keeps its ratio to a token of a layer.
Speed speed_from(const Measured& measured, const PlanRequest& request) {
  Speed speed = derived_speed(request);
  const double ratio = measured.token_layer / speed.token_layer;
  speed.measured = true;
  speed.chunk *= ratio;
  speed.conversion *= ratio;
  speed.pass_teacher *= ratio;
  speed.token_teacher *= ratio;
  speed.pass_layer = measured.pass_layer;
  speed.pass_rest = measured.pass_rest;
  speed.token_layer = measured.token_layer;
  speed.token_rest = measured.token_rest;
  for (size_t i = 0; i < speed.again.size(); ++i) {
    speed.again[i] = measured.again[i] > 0 ? measured.again[i] : speed.again[i] * ratio;
  }
  speed.update = measured.update_parameter * double(trained_count(request.model->parameters()));
  return speed;
}

// Times steps of models that are like the request's but for the number of layers.
class Stopwatch {
 public:
  Stopwatch(Platform& platform, const PlanRequest& request)
      : platform_(platform), request_(request), length_(text_length(request.workload)) {}

  struct Times {
    double pass = 0, update = 0, parameters = 0;
  };
  // Of micro-batches of so many texts; empty where that does not fit.
  std::optional<Times> time(int64_t layers, int64_t texts, const Parts& parts) {
    ModelConfig config = request_.model->config();
    config.num_hidden_layers = layers;
    const auto model = make_model(config, request_.model->head());
    PlanRequest request = request_;
    request.model = model.get();
    request.speed.reset();
    const int64_t tokens = texts * length_;
    request.workload.batch_size = kMorePasses * texts;
    request.workload.longest = request.workload.mean_length = length_;
    request.workload.step_tokens = kMorePasses * tokens;
    request.workload.sequences_per_example = 1;
    request.workload.one_size = true;
    request.pinned_capacity = tokens;
    request.pinned_recompute.reset();
    const Dims dims = request.workload.dims(tokens);
    request.pinned_choice =
        PlanChoice{.recompute = Recomputation(size_t(layers) + 1, parts),
                   .head_chunk = dims.targets > 0 ? std::min<int64_t>(dims.targets, 2048) : 0};
    request.pinned_choice->recompute[0] = {};
    const Plan plan = make_plan(request);
    if (!plan.fits) return std::nullopt;
    const auto engine = platform_.make_engine(*model, plan, /*seed=*/1);
    fill(*engine, *model);
    const BatchBuilder tokens_of_pass = made_up(texts, config.vocab_size, dims.targets);
    // Zero is a label of every task.
    const std::vector<int32_t> labels(size_t(texts * dims.label_words));
    Batch batch = tokens_of_pass.view();
    batch.labels = labels.data();
    batch.dims.label_words = dims.label_words;
    // A step of several passes less one of a single pass leaves passes alone.
    step(*engine, batch, 1);
    const double one = fastest([&] { step(*engine, batch, 1); }),
                 several = fastest([&] { step(*engine, batch, kMorePasses); });
    const double pass = std::max(several - one, 0.0) / (kMorePasses - 1);
    return Times{pass, std::max(one - pass, 0.0), double(parameter_count(model->parameters()))};
  }

  int64_t length() const { return length_; }

 private:
  static constexpr int kMorePasses = 3;

  static int64_t text_length(const Workload& workload) {
    return workload.mean_length > 0 ? std::min(workload.mean_length, workload.longest)
                                    : workload.longest;
  }

  // Weights as a fresh model has them: products of zeros take less power, and therefore less time,
  // on some devices.
  void fill(Engine& engine, const Model& model) const {
    std::vector<float> values(1 << 16);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    for (float& value : values) value = normal(random);
    for (size_t i = 0; i < model.parameters().size(); ++i) {
      const Block block = engine.weight(i);
      const auto bytes = std::as_bytes(std::span(values));
      for (size_t at = 0; at < block.bytes; at += bytes.size()) {
        block.write(at, bytes.first(std::min(bytes.size(), block.bytes - at)));
      }
    }
    engine.weights_changed();
  }

  BatchBuilder made_up(int64_t texts, int64_t vocabulary, int64_t targets) const {
    BatchBuilder batch;
    std::mt19937 random(2);
    std::vector<int32_t> ids(static_cast<size_t>(length_));
    for (int64_t text = 0; text < texts; ++text) {
      for (int32_t& id : ids) id = int32_t(random() % uint64_t(vocabulary));
      batch.add(ids, {}, 0);
      if (targets == 0) continue;
      const size_t count = std::min(ids.size(), size_t(std::max<int64_t>(1, targets / texts)));
      std::vector<int32_t> places(count);
      for (size_t i = 0; i < count; ++i) places[i] = int32_t(i * ids.size() / count);
      batch.predict(places, std::vector<int32_t>(count));
    }
    return batch;
  }

  static void step(Engine& engine, const Batch& batch, int passes) {
    engine.begin(double(passes) * double(std::max<int64_t>(1, batch.dims.sequences)));
    for (int i = 0; i < passes; ++i) engine.accumulate(batch);
    engine.update({.learning_rate = 1e-6, .step = 1}, 1.0);
    engine.finish();
  }

  // Whatever else the machine does only makes a step slower.
  template <class Work>
  static double fastest(const Work& work) {
    double best = 1e30;
    const auto start = Clock::now();
    for (int run = 0; run < 2 || (run < 20 && seconds_since(start) < kEnoughSeconds); ++run) {
      const auto begin = Clock::now();
      work();
      best = std::min(best, seconds_since(begin));
      if (seconds_since(start) > 2 * kEnoughSeconds) break;
    }
    return best;
  }

  Platform& platform_;
  const PlanRequest& request_;
  int64_t length_;
};

std::optional<Measured> measure(Platform& platform, const PlanRequest& request) {
  const auto start = Clock::now();
  Stopwatch watch(platform, request);
  const bool cpu = request.device.kind == DeviceKind::kCpu;
  const auto texts = [&](int64_t tokens) { return std::max<int64_t>(1, tokens / watch.length()); };
  const int64_t few = texts(cpu ? kFewTokensCpu : kFewTokensGpu),
                many = std::max(few + 1, texts(cpu ? kManyTokensCpu : kManyTokensGpu));
  Progress progress("timing this device", 4 + kPartNames.size(), "runs");
  std::array<Stopwatch::Times, 4> times;  // layers 1 and 2 of few texts, then of many
  for (size_t i = 0; i < times.size(); ++i) {
    const auto time = watch.time(1 + int64_t(i % 2), i < 2 ? few : many, {});
    if (!time) return std::nullopt;
    times[i] = *time;
    progress.update(i + 1);
  }
  Measured m;
  const double n1 = double(few * watch.length()), n2 = double(many * watch.length());
  const double layer_few = times[1].pass - times[0].pass,
               layer_many = times[3].pass - times[2].pass;
  // What noise makes negative is nothing; a layer takes some time, though.
  const auto positive = [](double value) { return std::max(value, 0.0); };
  m.token_layer = std::max((layer_many - layer_few) / (n2 - n1), 0.1 * times[3].pass / (2 * n2));
  m.pass_layer = positive(layer_few - n1 * m.token_layer);
  const double last = derived_speed(request).last_layer;  // the only one of the models of one layer
  m.token_rest = positive((times[2].pass - times[0].pass) / (n2 - n1) - last * m.token_layer);
  m.pass_rest =
      positive(times[0].pass - last * m.pass_layer - n1 * (last * m.token_layer + m.token_rest));
  m.update_parameter = times[3].update / times[3].parameters;
  Parts parts;
  double before = times[3].pass;
  for (size_t i = 0; i < kPartNames.size() && seconds_since(start) < kLongestSeconds; ++i) {
    parts.add(kPartNames[i].part);
    const auto time = watch.time(2, many, parts);
    if (!time) break;
    // Running the product of the MLP again has the activation in it.
    const double more = positive(time->pass - before) / ((1 + last) * n2);
    m.again[i] = std::max(more, 1e-3 * m.token_layer) +
                 (kPartNames[i].part == Part::kMlp ? m.again[i - 1] : 0);
    before = time->pass;
    progress.update(5 + i);
  }
  return m;
}

std::optional<Measured> read(const fs::path& file, const Json& key) {
  if (!fs::exists(file)) return std::nullopt;
  try {
    const Json json = parse_json(read_small_file(file), file.string());
    if (json.at("key") != key) return std::nullopt;
    return Measured{.pass_layer = json.at("pass_layer"),
                    .pass_rest = json.at("pass_rest"),
                    .token_layer = json.at("token_layer"),
                    .token_rest = json.at("token_rest"),
                    .update_parameter = json.at("update_parameter"),
                    .again = json.at("again")};
  } catch (const std::exception&) {  // an older or damaged file is as good as none
    return std::nullopt;
  }
}

void write(const fs::path& file, const Json& key, const Measured& m) {
  const Json json = {{"key", key},
                     {"pass_layer", m.pass_layer},
                     {"pass_rest", m.pass_rest},
                     {"token_layer", m.token_layer},
                     {"token_rest", m.token_rest},
                     {"update_parameter", m.update_parameter},
                     {"again", m.again}};
  make_directories(file.parent_path());
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace

std::optional<Speed> calibrated_speed(Platform& platform, const PlanRequest& request,
                                      const CalibrationOptions& options) {
  const Json key = key_of(platform, request);
  const fs::path file = file_of(options.cache_folder, key);
  std::optional<Measured> measured = read(file, key);
  if (!measured && options.run) {
    measured = measure(platform, request);
    if (measured) {
      write(file, key, *measured);
    } else {
      warn("--calibrate: two layers of this model do not fit the budget; speed is not predicted");
    }
  }
  return measured ? std::optional(speed_from(*measured, request)) : std::nullopt;
}

}  // namespace snug
