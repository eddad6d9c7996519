// Prediction, evaluation and embedding: texts stream through in the order of the file, packed into micro-batches, inside
// the same kind of plan as training. Nothing of the results is kept.
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/progress.h"
#include "data/batch_builder.h"
#include "data/row_reader.h"
#include "train/language_eval.h"
#include "train/metrics.h"
#include "train/session.h"
#include "train/training_job.h"

namespace snug {
namespace {

// A micro-batch of this many tokens keeps all processors busy; more only takes memory.
constexpr int64_t kUsefulTokens = 2048;
constexpr int64_t kMaxSequences = 128;

// Texts on their way through a loaded model.
class Runner {
 public:
  using OnResult = std::function<void(std::span<const float> result, int32_t label)>;

  Runner(const CommonOptions& options, Head head, const GraphOptions& graph);
  const ModelConfig& config() const { return session_.folder().config; }
  void add(std::string_view text, std::optional<std::string_view> pair, int32_t label, const OnResult& on_result);
  void finish(const OnResult& on_result);
  double take_loss() { return session_.engine().take_loss(); }

 private:
  Session session_;
  std::unique_ptr<BatchBuilder> pending_;  // sequences until they fill a micro-batch
  EncodeOptions encode_;
  Encoding encoding_;
};

Runner::Runner(const CommonOptions& options, Head head, const GraphOptions& graph) : session_(options, head) {
  const int64_t longest = int64_t(text_length(options, session_.model().max_length()));
  const Workload workload = {.batch_size = kMaxSequences, .longest = longest, .step_tokens = std::max(longest, kUsefulTokens)};
  session_.start(make_plan(session_.request(graph, workload, BatchBuilder::bytes)));
  pending_ = std::make_unique<BatchBuilder>(session_.plan().capacity);
  encode_.max_length = size_t(longest);
}

void Runner::add(std::string_view text, std::optional<std::string_view> pair, int32_t label, const OnResult& on_result) {
  session_.folder().tokenizer->encode(text, pair, encode_, encoding_);
  const Dims so_far = pending_->dims();
  if (so_far.tokens + int64_t(encoding_.ids.size()) > session_.plan().capacity.tokens ||
      so_far.sequences == session_.plan().capacity.sequences) {
    finish(on_result);
  }
  pending_->add(encoding_.ids, encoding_.type_ids, label);
}

void Runner::finish(const OnResult& on_result) {
  if (pending_->empty()) return;
  Engine& engine = session_.engine();
  engine.score(pending_->view());
  const std::span<const float> result = engine.result();
  const auto columns = size_t(engine.result_columns());
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
  Runner runner(options, Head::kClassifier, {.purpose = Purpose::kScoring});
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
  Runner runner(options, Head::kNone, {.purpose = Purpose::kEmbedding, .pooling = pooling});
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

namespace {

std::map<std::string, double> evaluate_classes(const EvalOptions& options) {
  Runner runner(options, Head::kClassifier, {.purpose = Purpose::kScoring});
  const LabelSet labels{runner.config().labels};
  LabelCollector known({.known = &labels, .need = LabelNeed::kRequired, .file = options.data});
  ClassificationMetrics metrics(labels.names.size());
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
  return result;
}

}  // namespace

std::map<std::string, double> evaluate(const EvalOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const bool language = is_language_folder(options.model);
  auto result = language ? evaluate_language(options) : evaluate_classes(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result["examples_per_second"] = result["examples"] / seconds;
  return result;
}

}  // namespace snug
