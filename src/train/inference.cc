// Prediction, evaluation and embedding: texts stream through in the order of the file, packed into micro-batches, inside
// the same kind of plan as training. Nothing of the results is kept.
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/progress.h"
#include "data/batch_builder.h"
#include "data/row_reader.h"
#include "model/weight_files.h"
#include "plan/planner.h"
#include "train/metrics.h"
#include "train/model_folder.h"
#include "train/platform.h"
#include "train/training_job.h"

namespace snug {
namespace {

// A micro-batch of this many tokens keeps all processors busy; more only takes memory.
constexpr int64_t kUsefulTokens = 2048;
constexpr int64_t kMaxSequences = 128;

struct RunnerOptions {
  CommonOptions common;
  Head head = Head::kClassifier;
  GraphOptions graph;
};

// A loaded model inside its plan.
class Runner {
 public:
  using OnResult = std::function<void(std::span<const float> result, int32_t label)>;

  explicit Runner(const RunnerOptions& options);
  const BertConfig& config() const { return folder_.config; }
  void add(std::string_view text, std::optional<std::string_view> pair, int32_t label, const OnResult& on_result);
  void finish(const OnResult& on_result);
  double take_loss() { return engine_->take_loss(); }
  uint64_t peak_bytes() const { return plan_.peak_bytes; }

 private:
  void make_plan_and_load(const RunnerOptions& options);

  std::unique_ptr<Platform> platform_;
  ModelFolder folder_;
  std::unique_ptr<Model> model_;
  Plan plan_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<BatchBuilder> pending_;  // sequences until they fill a micro-batch
  EncodeOptions encode_;
  Encoding encoding_;
};

Runner::Runner(const RunnerOptions& options)
    : platform_(open_platform(options.common)), folder_(open_model_folder(options.common.model)) {
  if (options.head == Head::kClassifier && folder_.config.labels.empty()) {
    throw Error(ErrorKind::kInput, fmt::format("{}: has no classes (config.json names no labels)", options.common.model),
                "train it first with snug train; snug embed works without");
  }
  model_ = make_bert(folder_.config, options.head);
  make_plan_and_load(options);
  pending_ = std::make_unique<BatchBuilder>(plan_.capacity);
  encode_.max_length = size_t(plan_.workload.longest);
}

void Runner::make_plan_and_load(const RunnerOptions& options) {
  const WeightFolder files(options.common.model);
  check_weights(files, model_->parameters(), {});
  const int64_t longest = int64_t(text_length(options.common, model_->max_length()));
  platform_->warm_up();
  PlanRequest request;
  request.model = model_.get();
  request.graph = options.graph;
  request.graph.compute = platform_->compute_type(options.common.precision);
  request.workload = {.batch_size = kMaxSequences, .longest = longest, .step_tokens = std::max(longest, kUsefulTokens)};
  request.process.buffer_bytes = BatchBuilder::bytes;
  request.budget_bytes = platform_->budget(options.common.memory_bytes);
  platform_->complete(request);
  plan_ = make_plan(request);
  if (!plan_.fits) {
    throw Error(ErrorKind::kBudget, summarize(plan_, platform_->name()).to_text(),
                fmt::format("the least that works is --memory {}", plan_.minimum_budget_bytes));
  }
  engine_ = platform_->make_engine(*model_, plan_, /*seed=*/0);
  const LoadReport report = load_weights(
      files, model_->parameters(), [this](size_t i) { return engine_->parameter(Region::kWeights, i); }, {});
  engine_->weights_changed();
  if (!report.made_new.empty()) {
    throw Error(ErrorKind::kInput, fmt::format("{}: has no {}", options.common.model, fmt::join(report.made_new, ", ")),
                "this model has not been trained to tell classes apart: snug train does that");
  }
}

void Runner::add(std::string_view text, std::optional<std::string_view> pair, int32_t label, const OnResult& on_result) {
  folder_.tokenizer->encode(text, pair, encode_, encoding_);
  const Dims so_far = pending_->dims();
  if (so_far.tokens + int64_t(encoding_.ids.size()) > plan_.capacity.tokens ||
      so_far.sequences == plan_.capacity.sequences) {
    finish(on_result);
  }
  pending_->add(encoding_.ids, encoding_.type_ids, label);
}

void Runner::finish(const OnResult& on_result) {
  if (pending_->empty()) return;
  engine_->score(pending_->view());
  const std::span<const float> result = engine_->result();
  const auto columns = size_t(engine_->result_columns());
  for (int64_t row = 0; row < pending_->dims().sequences; ++row) {
    on_result(result.subspan(size_t(row) * columns, columns), pending_->label(row));
  }
  pending_->clear();
}

std::unique_ptr<RowReader> open_input(const CommonOptions& options, const std::string& file, LabelNeed labels) {
  RowReaderOptions reader;
  reader.columns = {options.text_column, options.text_pair_column, options.label_column};
  reader.labels = labels;
  reader.has_header = options.header;
  return open_rows(file, reader);
}

// One text from the command line, or every row of a file.
void feed(const InferenceOptions& options, Runner& runner, const Runner::OnResult& on_result) {
  if (options.text) {
    std::optional<std::string_view> pair;
    if (options.text_pair) pair = *options.text_pair;
    runner.add(*options.text, pair, -1, on_result);
  } else {
    const auto reader = open_input(options, options.input, LabelNeed::kIgnored);
    Progress progress("reading " + options.input, 0, "rows");
    uint64_t rows = 0;
    for (Row row; reader->next(row); progress.update(++rows)) runner.add(row.text, row.text_pair, -1, on_result);
  }
  runner.finish(on_result);
}

void check_input(const InferenceOptions& options) {
  if (options.text.has_value() == !options.input.empty()) {
    fail(ErrorKind::kUsage, "give either --text or --input");
  }
}

// Scores to probabilities, in fp64.
void softmax(std::span<const float> logits, std::vector<double>& out) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  out.clear();
  for (const float x : logits) sum += out.emplace_back(std::exp(double(x) - top));
  for (double& p : out) p /= sum;
}

}  // namespace

void predict(const InferenceOptions& options, const std::function<void(const Prediction&)>& on_prediction) {
  check_input(options);
  Runner runner({.common = options, .graph = {.purpose = Purpose::kScoring}});
  std::vector<double> probabilities;
  feed(options, runner, [&](std::span<const float> logits, int32_t) {
    softmax(logits, probabilities);
    const auto& labels = runner.config().labels;
    const auto best = size_t(argmax(logits));
    Prediction prediction{labels[best], probabilities[best], {}};
    for (size_t i = 0; i < labels.size(); ++i) prediction.scores.emplace_back(labels[i], probabilities[i]);
    on_prediction(prediction);
  });
}

void embed(const InferenceOptions& options, const std::function<void(const std::vector<float>&)>& on_embedding) {
  check_input(options);
  if (options.pooling != "mean" && options.pooling != "cls") {
    fail(ErrorKind::kUsage, "--pooling is \"{}\", expected mean or cls", options.pooling);
  }
  const Pooling pooling = options.pooling == "mean" ? Pooling::kMean : Pooling::kFirstToken;
  Runner runner({.common = options, .head = Head::kNone, .graph = {.purpose = Purpose::kEmbedding, .pooling = pooling}});
  std::vector<float> embedding;
  feed(options, runner, [&](std::span<const float> pooled, int32_t) {
    embedding.assign(pooled.begin(), pooled.end());
    double squares = 0;
    for (const float x : pooled) squares += double(x) * x;
    if (options.normalize && squares > 0) {
      for (float& x : embedding) x = float(x / std::sqrt(squares));
    }
    on_embedding(embedding);
  });
}

std::map<std::string, double> evaluate(const EvalOptions& options) {
  Runner runner({.common = options, .graph = {.purpose = Purpose::kScoring}});
  const LabelSet labels{runner.config().labels};
  LabelCollector known({.known = &labels, .need = LabelNeed::kRequired, .file = options.data});
  ClassificationMetrics metrics(labels.names.size());
  const auto start = std::chrono::steady_clock::now();
  const auto reader = open_input(options, options.data, LabelNeed::kRequired);
  const auto on_result = [&](std::span<const float> logits, int32_t label) { metrics.add(label, argmax(logits)); };
  Progress progress("evaluating " + options.data, 0, "rows");
  uint64_t rows = 0;
  for (Row row; reader->next(row); progress.update(++rows)) {
    runner.add(row.text, row.text_pair, known.add(row.label, row.line), on_result);
  }
  runner.finish(on_result);
  if (rows == 0) fail(ErrorKind::kInput, "{}: has no rows", options.data);
  auto result = metrics.all();
  result["loss"] = runner.take_loss() / double(rows);
  result["examples"] = double(rows);
  result["examples_per_second"] =
      double(rows) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace snug
