// Prediction, evaluation and embedding: texts stream through in the order of the file, packed into
// micro-batches, inside the same kind of plan as training.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/progress.h"
#include "data/data_files.h"
#include "metrics/probabilities.h"
#include "metrics/tag_set.h"
#include "text/unicode.h"
#include "train/answers.h"
#include "train/language_eval.h"
#include "train/session.h"
#include "train/task_evaluation.h"
#include "train/training_job.h"

namespace snug {
namespace {

// A micro-batch of this many tokens keeps all processors busy; more only takes memory.
constexpr int64_t kUsefulTokens = 2048;
constexpr int64_t kMaxSequences = 128;

// A model folder that is loaded for its task, or for embedding.
class LoadedModel {
 public:
  LoadedModel(const CommonOptions& options, Task task, Head head, const GraphOptions& graph,
              const std::function<uint64_t(const Session&, const EncodingOptions&, const Dims&)>&
                  more_bytes = {})
      : session_(opened(options, head)),
        encoding_(encoding_options(options, task, session_.model().max_length())) {
    const auto longest = int64_t(encoding_.max_length);
    const Workload workload = {
        .batch_size = kMaxSequences,
        .longest = longest,
        .step_tokens = std::max(longest, kUsefulTokens),
        .label_words = label_words(session_.model().config(), head),
        .target_rule = head == Head::kTagger ? TargetRule::kEveryToken : TargetRule::kNone};
    const auto buffers = [&](const Dims& capacity) {
      return TextRunner::bytes(capacity, encoding_, 0) +
             (more_bytes ? more_bytes(session_, encoding_, capacity) : 0);
    };
    session_.start(make_plan(session_.request(graph, workload, buffers)));
    encoding_.word_room = TextRunner::word_room(session_.plan());
  }

  const ModelConfig& config() const { return session_.folder().config; }
  const EncodingOptions& encoding() const { return encoding_; }
  Session& session() { return session_; }
  uint64_t record_room(const std::filesystem::path& file) {
    return TextRunner::record_room(session_.plan(), encoding_, file);
  }
  TextRunner runner(TextRunner::OnRow on_row) {
    return TextRunner(session_.engine(), session_.plan(), *session_.folder().tokenizer, encoding_,
                      std::move(on_row));
  }

 private:
  // Weights of another shape come with advice for training, which may make a new head; here there
  // is none to be made.
  static Session opened(const CommonOptions& options, Head head) {
    try {
      return Session(options, head);
    } catch (const Error& error) {
      if (error.hint().find("--ignore-mismatched-sizes") == std::string::npos) throw;
      throw Error(
          error.kind(), error.what(),
          "do weights and config.json belong together? id2label says how many classes there are");
    }
  }

  Session session_;
  EncodingOptions encoding_;
};

// The words of a text as corpora of tagged words have them: apart at white space, punctuation by
// itself.
std::vector<TaggedWord> words_of(std::string_view text) {
  std::vector<TaggedWord> words;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint16_t flags = CharTable::get()[next_code_point(text, at)];
    const bool alone = (flags & kCharPunct) != 0;
    if ((flags & kCharSpace) != 0) {
      inside = false;
      continue;
    }
    if (inside && !alone) {
      words.back().end = at;
    } else {
      words.push_back({begin, at, -1});
    }
    inside = !alone;
  }
  return words;
}

// Of a row to predict something for.
RowLabels no_labels(const Row& row, Labelling labelling) {
  RowLabels labels;
  if (labelling == Labelling::kClass || labelling == Labelling::kNumber) labels.labels = {-1};
  if (labelling == Labelling::kTags) {
    labels.words = words_of(row.text);
    if (!row.words.empty()) {
      labels.words.clear();
      for (const Word& word : row.words) labels.words.push_back({word.begin, word.end, -1});
    }
  }
  return labels;
}

// Names like .txt and .jsonl are those of plain texts too: the file holds words where snug eval
// could read it, with this model's tags in its first sentence.
bool holds_tagged_words(const std::string& file, const RowReaderOptions& reading,
                        const std::vector<std::string>& tags) {
  if (file == "-") return false;  // can be read only once
  RowReaderOptions words = reading;
  words.kind = RowKind::kWords;
  words.labels = LabelNeed::kRequired;
  const auto is_known = [&](const Word& word) {
    return word.label.empty() || std::ranges::find(tags, word.label) != tags.end();
  };
  try {
    const auto reader = open_rows(file, words);
    Row row;
    return reader->next(row) && std::ranges::all_of(row.words, is_known);
  } catch (const Error&) {
    return false;
  }
}

// How the rows of --input are read.
RowReaderOptions input_options(const InferenceOptions& options, LoadedModel& model) {
  const Labelling labelling = model.encoding().labelling;
  RowReaderOptions reading = reader_options(options, RowKind::kTexts, LabelNeed::kIgnored);
  reading.record_room =
      model.record_room(options.input == "-" ? "." + reading.stdin_format : options.input);
  if (labelling == Labelling::kAnswer) reading.kind = RowKind::kQuestions;
  if (labelling != Labelling::kTags) return reading;
  if (is_tagged_file(options.input)) {
    reading.kind = RowKind::kWords;
  } else if (holds_tagged_words(options.input, reading, model.config().labels)) {
    reading.kind = RowKind::kWords;
    say(options.input + ": words with tags, read as snug eval reads them");
  }
  return reading;
}

// One text from the command line, or every row of a file.
void feed(const InferenceOptions& options, LoadedModel& model, TextRunner& runner) {
  const Labelling labelling = model.encoding().labelling;
  std::string name = "--text";
  if (options.text) {
    Row row{.text = *options.text};
    if (options.text_pair) row.text_pair = *options.text_pair;
    runner.add(OwnedRow(row, no_labels(row, labelling)));
  } else {
    name = options.input == "-" ? "standard input" : options.input;
    const auto reader = open_rows(options.input, input_options(options, model));
    Progress progress("reading " + name, 0, "rows");
    for (Row row; reader->next(row); progress.update(runner.rows())) {
      runner.add(name, row, no_labels(row, labelling));
    }
  }
  runner.finish();
  if (runner.long_rows() > 0) say(long_texts_text(name, runner.long_rows(), model.encoding()));
}

void check_input(const InferenceOptions& options) {
  if (options.text.has_value() == !options.input.empty()) {
    fail(ErrorKind::kUsage, "give either --text or --input");
  }
  if (options.text_pair && !options.text) {
    fail(ErrorKind::kUsage, "--text-pair goes with --text; files have --text-pair-column");
  }
}

void check_texts(const InferenceOptions& options, Task task) {
  if (task == Task::kAnswer && options.text && !options.text_pair) {
    throw Error(ErrorKind::kUsage, "a question needs the text that holds its answer",
                "--context TEXT gives it");
  }
  if (task == Task::kTag && options.text_pair) {
    fail(ErrorKind::kUsage, "--text-pair: this model tags the words of one text");
  }
}

Prediction predict_class(const ModelConfig& config, std::span<const ScoredExample> windows) {
  std::vector<float> scores;
  std::vector<double> probabilities;
  mean_scores(windows, scores);
  softmax(scores, probabilities);
  const auto best = size_t(argmax(scores));
  Prediction prediction{.label = config.labels[best], .score = probabilities[best]};
  for (size_t i = 0; i < config.labels.size(); ++i) {
    prediction.scores.emplace_back(config.labels[i], probabilities[i]);
  }
  return prediction;
}

Prediction predict_labels(const ModelConfig& config, std::span<const ScoredExample> windows) {
  std::vector<float> scores;
  mean_scores(windows, scores);
  Prediction prediction{.labels = std::vector<std::string>()};
  for (size_t i = 0; i < config.labels.size(); ++i) {
    prediction.scores.emplace_back(config.labels[i], sigmoid(scores[i]));
    if (scores[i] > 0) prediction.labels->push_back(config.labels[i]);
  }
  return prediction;
}

Prediction predict_tags(const ModelConfig& config, const OwnedRow& row,
                        std::span<const ScoredExample> windows) {
  std::vector<BestTag> best;
  best_tags(row, windows, config.labels.size(), best);
  const auto outside = std::ranges::find(config.labels, "O");
  std::vector<int32_t> tags;
  Prediction prediction{.entities = std::vector<EntityPrediction>()};
  const std::vector<TaggedWord>& words = row.labels.words;
  const auto part = [&](size_t begin, size_t end) { return row.text.substr(begin, end - begin); };
  for (size_t word = 0; word < best.size(); ++word) {
    const auto fallback =
        outside == config.labels.end() ? 0 : int32_t(outside - config.labels.begin());
    tags.push_back(best[word].tag < 0 ? fallback : best[word].tag);
    prediction.tags.emplace_back(part(words[word].begin, words[word].end),
                                 config.labels[size_t(tags.back())]);
  }
  const TagSet set(config.labels, scheme_of(config.labels));
  std::vector<Entity> entities;
  set.find_entities(tags, entities);
  for (const Entity& entity : entities) {
    const size_t begin = words[entity.first].begin, end = words[entity.last].end;
    EntityPrediction found{.type = set.types()[size_t(entity.type)], .text = part(begin, end)};
    found.begin = count_code_points(std::string_view(row.text).substr(0, begin));
    found.end = found.begin + count_code_points(found.text);
    for (size_t word = entity.first; word <= entity.last; ++word) {
      found.score += best[word].probability;
    }
    found.score /= double(entity.last - entity.first + 1);
    prediction.entities->push_back(std::move(found));
  }
  return prediction;
}

Prediction predict_answers(const InferenceOptions& options, const OwnedRow& row,
                           std::span<const ScoredExample> windows) {
  FoundAnswers found =
      find_answers(row, windows, size_t(options.n_best_size), size_t(options.max_answer_length));
  Prediction prediction{.no_answer_score = found.no_answer_score};
  if (options.version_2_with_negative && found.no_answer_score > 0) found.best.clear();
  prediction.answers = std::move(found.best);
  return prediction;
}

Prediction prediction_of(const InferenceOptions& options, Task task, const ModelConfig& config,
                         const OwnedRow& row, std::span<const ScoredExample> windows) {
  switch (task) {
    case Task::kMultiLabel:
      return predict_labels(config, windows);
    case Task::kRegress:
      return {.value = double(windows[0].result[0])};
    case Task::kTag:
      return predict_tags(config, row, windows);
    case Task::kAnswer:
      return predict_answers(options, row, windows);
    default:
      return predict_class(config, windows);
  }
}

// What the folder was trained for.
Task task_of_folder(const CommonOptions& options) {
  return task_of(read_config(options.model), options.model);
}

}  // namespace

void predict(const InferenceOptions& options,
             const std::function<void(const Prediction&)>& on_prediction) {
  check_input(options);
  if (options.n_best_size < 1 || options.max_answer_length < 1) {
    fail(ErrorKind::kUsage, "--n-best-size and --max-answer-length are at least 1");
  }
  const Task task = task_of_folder(options);
  if (is_language(task)) {
    throw Error(
        ErrorKind::kInput,
        fmt::format("{}: is a language model, which predicts words", options.model),
        "snug generate writes with it; snug train --task classify makes a classifier of it");
  }
  check_texts(options, task);
  LoadedModel model(options, task, head_of(task), {.purpose = Purpose::kScoring});
  TextRunner runner =
      model.runner([&](const OwnedRow& row, std::span<const ScoredExample> windows) {
        Prediction prediction = prediction_of(options, task, model.config(), row, windows);
        prediction.id = row.id;
        on_prediction(prediction);
      });
  feed(options, model, runner);
}

void embed(const InferenceOptions& options,
           const std::function<void(const std::vector<float>&)>& on_embedding) {
  check_input(options);
  if (options.pooling != "mean" && options.pooling != "cls") {
    fail(ErrorKind::kUsage, "--pooling is \"{}\", expected mean or cls", options.pooling);
  }
  const Pooling pooling = options.pooling == "mean" ? Pooling::kMean : Pooling::kFirstToken;
  LoadedModel model(options, Task::kClassify, Head::kNone,
                    {.purpose = Purpose::kEmbedding, .pooling = pooling});
  std::vector<float> embedding;
  TextRunner runner = model.runner([&](const OwnedRow&, std::span<const ScoredExample> windows) {
    mean_scores(windows, embedding);
    double squares = 0;
    for (const float x : embedding) squares += double(x) * x;
    if (options.normalize && squares > 0) {
      for (float& x : embedding) x = float(x / std::sqrt(squares));
    }
    on_embedding(embedding);
  });
  feed(options, model, runner);
}

Evaluation evaluate(const EvalOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Task task = task_of_folder(options);
  Evaluation result;
  if (is_language(task)) {
    result.metrics = evaluate_language(options, task);
  } else {
    const std::vector<std::filesystem::path> files = find_data_files("--data", options.data).files;
    const auto setup_of = [&](const Session& session, const EncodingOptions& encoding) {
      return FileEvaluation::Setup{options,
                                   task,
                                   session.folder().config,
                                   *session.folder().tokenizer,
                                   encoding,
                                   cache_folder(options)};
    };
    LoadedModel model(
        options, task, head_of(task), {.purpose = Purpose::kScoring},
        [&](const Session& session, const EncodingOptions& encoding, const Dims& capacity) {
          return FileEvaluation::bytes(setup_of(session, encoding), {.files = files}, capacity);
        });
    Session& session = model.session();
    FileEvaluation evaluation(setup_of(session, model.encoding()), session.engine(),
                              session.plan());
    const uint64_t all = std::numeric_limits<uint64_t>::max();
    result.metrics = evaluation.run(
        files, options.max_eval_samples > 0 ? uint64_t(options.max_eval_samples) : all);
    result.metrics["long_texts"] = double(evaluation.long_rows());
    result.report = evaluation.report();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.metrics["examples_per_second"] = result.metrics["examples"] / seconds;
  return result;
}

}  // namespace snug
