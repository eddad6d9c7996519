// The training loop. A step is a pure function of (weights, optimizer state, step number): data
// order and dropout come from counters, so a run that is killed and resumed continues the same
// curve bit for bit.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <deque>
#include <ranges>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/threads.h"
#include "model/adapter.h"
#include "model/weight_files.h"
#include "train/checkpoint.h"
#include "train/run_files.h"
#include "train/run_report.h"
#include "train/training_job.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The first signal asks for a stop at the next step's end, the second ends the process at once.
std::atomic<int> g_stop_requests = 0;

void on_signal(int) {
  if (g_stop_requests.fetch_add(1) > 0) ::_exit(int(ErrorKind::kInterrupted));
}

class SignalGuard {
 public:
  SignalGuard() {
    g_stop_requests = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigaction(SIGINT, &action, &old_int_);
    ::sigaction(SIGTERM, &action, &old_term_);
  }
  ~SignalGuard() {
    ::sigaction(SIGINT, &old_int_, nullptr);
    ::sigaction(SIGTERM, &old_term_, nullptr);
  }
  bool stop_requested() const { return g_stop_requests > 0; }

 private:
  struct sigaction old_int_, old_term_;
};

// As checkpoints carry it: a text for each segment.
std::vector<std::string> recompute_names(const Recomputation& recompute) {
  std::vector<std::string> names;
  for (const Parts& parts : recompute) names.push_back(to_string(parts));
  return names;
}
Recomputation recompute_of(const Json& names) {
  Recomputation recompute;
  for (const std::string name : names) {
    Parts parts;
    if (!parse_parts(name, parts)) {
      fail(ErrorKind::kInput, "the checkpoint recomputes \"{}\", which this snug does not know",
           name);
    }
    recompute.push_back(parts);
  }
  return recompute;
}

struct Resume {
  fs::path checkpoint;
  uint64_t step = 0;
  Json state;
};

class Trainer {
 public:
  Trainer(const TrainingJob& job, std::optional<Resume> resume,
          const std::function<void(const StepMetrics&)>& on_step);
  TrainSummary run();

 private:
  std::vector<CheckpointTensor> checkpoint_tensors() const;
  // What is loaded from --model and written.
  const Model& student() const { return job_.model->student(); }
  ParameterMemory weight_memory() const {
    return [this](size_t parameter) { return engine_->weight(parameter); };
  }
  void load();
  void check_same_run(const Json& state) const;
  void check_same_teacher(const Json& before) const;
  Json fingerprint() const;

  void keep_states(const SignalGuard& signals);
  void step(const StepBatch& batch);
  void finish(size_t ahead);
  void evaluate(uint64_t step);
  std::map<std::string, double> evaluate_language();
  std::string metric_for_best_model() const;  // without "eval_"
  void check_metric(const std::set<std::string>& names) const;
  void check_classes() const;
  bool improved(const std::map<std::string, double>& metrics);
  void save(uint64_t step);
  void save_weights_to(const fs::path& folder);
  void save_final_weights();
  TrainSummary summary() const;
  double epoch_of(uint64_t step) const { return double(step) / double(job_.steps_per_epoch); }
  fs::path output() const { return job_.options.output_dir; }
  fs::path best_folder() const { return output() / "best"; }

  const TrainingJob& job_;
  std::optional<Resume> resume_;
  const std::function<void(const StepMetrics&)>& on_step_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<BatchStream> validation_;     // of a language model
  std::unique_ptr<FileEvaluation> evaluation_;  // of any other
  std::optional<KeptStates> kept_;              // what frozen layers give

  // State that a checkpoint carries besides weights and moments.
  double loss_sum_ = 0;
  std::optional<double> best_;
  int64_t evaluations_without_improvement_ = 0;

  std::deque<StepMetrics> running_;  // steps whose results are still to come
  Clock::time_point last_finish_;
  uint64_t first_step_ = 0, steps_done_ = 0, examples_ = 0, tokens_ = 0;
  double train_seconds_ = 0, keeping_seconds_ = 0;
  std::map<std::string, double> last_eval_;
  std::unique_ptr<MetricsLog> log_;
  bool stopped_early_ = false;
};

Trainer::Trainer(const TrainingJob& job, std::optional<Resume> resume,
                 const std::function<void(const StepMetrics&)>& on_step)
    : job_(job),
      resume_(std::move(resume)),
      on_step_(on_step),
      engine_(job_.platform->make_engine(*job_.model, job_.plan, job_.options.seed)) {
  if (job_.eval_every > 0 && is_language(job_.task)) {
    validation_ = std::make_unique<BatchStream>(*job_.validation, job_.validation_batches());
  } else if (job_.eval_every > 0) {
    evaluation_ = std::make_unique<FileEvaluation>(job_.evaluation(), *engine_, job_.plan);
  }
  if (job_.eval_every > 0) {
    check_metric(evaluation_ ? evaluation_->metric_names()
                             : std::set<std::string>{"loss", "perplexity"});
    check_classes();
  }
  if (job_.keeping) kept_.emplace(cache_folder(job_.options), *job_.keeping);
  load();
  engine_->weights_changed();
  log_ = std::make_unique<MetricsLog>(output(), first_step_);
}

std::vector<CheckpointTensor> Trainer::checkpoint_tensors() const {
  std::vector<CheckpointTensor> tensors;
  const auto add = [&](const char* name, DType dtype, Region region) {
    const Block block = engine_->region(region);
    if (block.bytes > 0) tensors.push_back({name, dtype, block});
  };
  add("weights", DType::kF32, Region::kWeights);
  add("weights_bf16", DType::kBF16, Region::kHalves);
  add("optimizer_state", DType::kU8, Region::kState);
  return tensors;
}

void Trainer::load() {
  if (const Model* teacher = job_.model->teacher()) {  // its parameters stand behind the student's
    const size_t first = student().parameters().size();
    load_weights(WeightFolder(job_.options.teacher), *teacher,
                 [&](size_t i) { return engine_->weight(first + i); }, {});
  }
  const bool some_frozen = !std::ranges::all_of(student().parameters(), &Parameter::trained);
  if (!resume_ || some_frozen) {  // a checkpoint holds what is trained
    const LoadReport report =
        load_weights(WeightFolder(job_.options.model), student(), weight_memory(), job_.load);
    if (!report.made_new.empty()) {
      say(fmt::format("not in the model's files, so made new: {} (seed {})",
                      fmt::join(report.made_new, ", "), job_.options.seed));
    }
    if (!report.unused.empty()) {
      say(fmt::format("in the model's files, not used here: {} tensors ({}{})",
                      report.unused.size(), report.unused[0],
                      report.unused.size() > 1 ? ", ..." : ""));
    }
  }
  if (!resume_) return;
  check_same_run(resume_->state);
  load_checkpoint_tensors(resume_->checkpoint, checkpoint_tensors());
  first_step_ = resume_->step;
  loss_sum_ = resume_->state.at("loss_sum");
  if (!resume_->state.at("best").is_null()) best_ = resume_->state.at("best").get<double>();
  evaluations_without_improvement_ = resume_->state.at("evaluations_without_improvement");
  engine_->set_loss_scale({.scale = resume_->state.at("loss_scale").at(0),
                           .clean_steps = resume_->state.at("loss_scale").at(1)});
  last_eval_ = resume_->state.at("eval").get<std::map<std::string, double>>();
  say(fmt::format("resumed from {} (step {})", resume_->checkpoint.string(), first_step_));
}

// Everything that decides the numbers besides the weights.
Json Trainer::fingerprint() const {
  const TrainOptions& o = job_.options;
  return {
      {"task", task_name(job_.task)},
      {"data", job_.train->fingerprint()},
      {"rows", job_.train->rows()},
      {"seed", o.seed},
      {"batch_size", o.batch_size},
      {"total_steps", job_.total_steps},
      {"learning_rate", o.learning_rate},
      {"optim", optimizer_name(job_.plan.optimizer)},
      {"momentum", job_.plan.optimizer == Optimizer::kSgdMomentum ? o.momentum : 0.0},
      {"weight_decay", o.weight_decay},
      {"schedule", o.lr_scheduler_type},
      {"warmup_steps", job_.schedule.warmup_steps},
      {"max_grad_norm", o.max_grad_norm},
      {"precision", dtype_name(job_.plan.compute)},
      {"masking", {o.mlm_probability, o.whole_word_mask}},
      {"freeze", o.freeze},
      {"keep_frozen", job_.summary.drops_less},
      {"lora", {o.lora_rank, o.lora_alpha, o.lora_dropout, o.lora_target_modules}},
      {"quantize", o.quantize},
      {"distillation", job_.teacher ? Json{job_.teacher->fingerprint, job_.distillation.temperature,
                                           job_.distillation.alpha}
                                    : Json()},
      {"labels", job_.folder.config.labels},
      {"label_smoothing", o.label_smoothing},
      {"class_weights", job_.class_weights}};
}

// `before` is what fingerprint() was then; null: there was no teacher.
void Trainer::check_same_teacher(const Json& before) const {
  const Json now = fingerprint().at("distillation");
  if (now == before) return;
  const std::string& teacher = job_.options.teacher;
  std::string change;
  if (before.is_null()) {
    change = fmt::format("without a teacher, now there is --teacher {}", teacher);
  } else if (now.is_null()) {
    change = "with a teacher, now there is no --teacher";
  } else if (now.at(0) != before.at(0)) {
    change = fmt::format("with another teacher than --teacher {}", teacher);
  } else {
    change =
        fmt::format("with --distill-temperature {} and --distill-alpha {}, now they are {} and {}",
                    before.at(1).dump(), before.at(2).dump(), now.at(1).dump(), now.at(2).dump());
  }
  throw Error(ErrorKind::kUsage,
              fmt::format("{} was trained {}", resume_->checkpoint.string(), change),
              "resume with the same flags, or start a new run");
}

void Trainer::check_same_run(const Json& state) const {
  const Json now = fingerprint();
  // First: its labels are part of how data is read.
  check_same_teacher(state.at("run").value("distillation", Json()));
  for (const auto& [name, value] : state.at("run").items()) {
    if (now.at(name) == value) continue;
    if (name == "data") {
      fail(ErrorKind::kInput,
           "{}: the files, what is taken of them, the tokenizer or --max-length changed since {}",
           job_.options.train, resume_->checkpoint.string());
    }
    throw Error(ErrorKind::kUsage,
                fmt::format("{} was trained with {} = {}, now it is {}",
                            resume_->checkpoint.string(), name, value.dump(), now.at(name).dump()),
                "resume with the same flags, or start a new run");
  }
  if (state.at("threads") != num_threads()) {
    warn(fmt::format("resumed with {} threads instead of {}: results may differ by rounding",
                     num_threads(), state.at("threads").dump()));
  }
}

void Trainer::keep_states(const SignalGuard& signals) {
  const auto start = Clock::now();
  const bool all = kept_->fill(job_.train->unmixed(), job_.filling_batches(), *engine_,
                               [&] { return signals.stop_requested(); });
  if (!all) {
    throw Error(ErrorKind::kInterrupted,
                fmt::format("stopped before step {}, while frozen layers ran", first_step_ + 1),
                first_step_ > 0 ? "--resume-from-checkpoint latest goes on from there"
                                : "--overwrite-output-dir starts again");
  }
  keeping_seconds_ = seconds_since(start);
  say(fmt::format("frozen layers: ran once over {} examples in {:.1f} s", job_.train->rows(),
                  keeping_seconds_));
}

void Trainer::step(const StepBatch& batch) {
  const TrainOptions& o = job_.options;
  const double learning_rate = job_.schedule.rate(batch.step);
  engine_->begin(batch.weight > 0 ? batch.weight : 1);
  for (const MicroBatch& micro : batch.micro_batches) {
    if (kept_) kept_->give(micro, *engine_);
    engine_->accumulate(micro.view());
  }
  engine_->update({.learning_rate = learning_rate,
                   .beta1 = o.adam_beta1,
                   .beta2 = o.adam_beta2,
                   .epsilon = o.adam_epsilon,
                   .weight_decay = o.weight_decay,
                   .momentum = o.momentum,
                   .step = int64_t(batch.step) + 1,
                   .seed = o.seed},
                  o.max_grad_norm);
  running_.push_back({.step = batch.step + 1,
                      .epoch = epoch_of(batch.step + 1),
                      .learning_rate = learning_rate,
                      .tokens = batch.tokens,
                      .examples = batch.examples,
                      .rows_checksum = batch.rows_checksum});
  finish(size_t(engine_->updates_ahead()));
}

// Takes results until at most `ahead` steps are still running.
void Trainer::finish(size_t ahead) {
  while (running_.size() > ahead) {
    StepMetrics metrics = running_.front();
    running_.pop_front();
    const StepResult result = engine_->finish();
    metrics.loss = result.loss;
    metrics.grad_norm = result.gradient_norm;
    metrics.seconds = seconds_since(last_finish_);
    last_finish_ = Clock::now();
    if (result.skipped) {
      say(fmt::format(
          "step {}: gradients overflowed in fp16, the step is left out; loss scale now {:g}",
          metrics.step, engine_->loss_scale().scale));
      metrics.loss = metrics.grad_norm = 0;
    } else if (!result.applied) {
      throw Error(ErrorKind::kNumbers,
                  fmt::format("at step {} the loss is {} and the norm of the gradient {}",
                              metrics.step, result.loss, result.gradient_norm),
                  "lower --learning-rate, or look for broken weights; the last checkpoint is kept");
    }
    loss_sum_ += metrics.loss;
    examples_ += metrics.examples;
    tokens_ += metrics.tokens;
    train_seconds_ += metrics.seconds;
    ++steps_done_;
    log_->step(metrics);
    if (on_step_) on_step_(metrics);
  }
}

std::map<std::string, double> Trainer::evaluate_language() {
  engine_->take_loss();
  Progress progress("evaluating", job_.validation->rows(), "examples");
  uint64_t examples = 0, targets = 0;
  while (examples < job_.validation->rows()) {  // the stream goes over the data again and again
    const StepBatch* batch = nullptr;
    validation_->next(batch);
    for (const MicroBatch& micro : batch->micro_batches) engine_->score(micro.view());
    examples += batch->examples;
    targets += batch->targets;
    progress.update(examples);
  }
  const double loss = engine_->take_loss() / double(std::max<uint64_t>(1, targets));
  return {{"loss", loss}, {"perplexity", std::exp(loss)}};
}

void Trainer::evaluate(uint64_t step) {
  last_eval_ = evaluation_ ? evaluation_->run(*job_.validation) : evaluate_language();
  last_eval_.erase("examples");
  std::string line = fmt::format("step {}: validation loss {:.4f}", step, last_eval_["loss"]);
  for (const char* name : {"perplexity", "accuracy", "exact_match", "exact", "f1",
                           "matthews_correlation", "pearson", "spearmanr"}) {
    if (last_eval_.contains(name)) line += fmt::format(", {} {:.4f}", name, last_eval_[name]);
  }
  say(line);
  log_->evaluation(step, epoch_of(step), last_eval_);
}

std::string Trainer::metric_for_best_model() const {
  const std::string& name = job_.options.metric_for_best_model;
  return name.starts_with("eval_") ? name.substr(5) : name;
}

void Trainer::check_metric(const std::set<std::string>& names) const {
  if (names.contains(metric_for_best_model())) return;
  fail(ErrorKind::kUsage, "--metric-for-best-model {} is not measured; there are {}",
       job_.options.metric_for_best_model, fmt::join(names, ", "));
}

// A file of one class has no area under its curve. Of parts of a file the classes are not known.
void Trainer::check_classes() const {
  if (metric_for_best_model() != "roc_auc" || job_.task != Task::kClassify) return;
  const auto has_rows = [](uint64_t count) { return count > 0; };
  if (std::ranges::count_if(job_.validation->label_counts(), has_rows) > 1) return;
  fail(ErrorKind::kUsage,
       "--metric-for-best-model {} needs two classes: all rows for validation have one label",
       job_.options.metric_for_best_model);
}

bool Trainer::improved(const std::map<std::string, double>& metrics) {
  const std::string name = metric_for_best_model();
  const auto found = metrics.find(name);
  if (found == metrics.end()) {  // the rows did not allow it
    const auto names = std::views::keys(metrics);
    check_metric({names.begin(), names.end()});
  }
  const bool greater = job_.options.greater_is_better.value_or(snug::greater_is_better(name));
  const double value = found->second;
  const bool better = !best_ || (greater ? value > *best_ : value < *best_);
  if (better) best_ = value;
  evaluations_without_improvement_ = better ? 0 : evaluations_without_improvement_ + 1;
  return better;
}

void Trainer::save(uint64_t step) {
  CheckpointContents contents;
  contents.step = step;
  contents.state = {
      {"run", fingerprint()},
      {"threads", num_threads()},
      {"micro_batch_tokens", job_.plan.capacity.tokens},
      {"recompute", recompute_names(job_.plan.choice.recompute)},
      {"head_chunk", job_.plan.choice.head_chunk},
      {"converts_weights", job_.plan.choice.converts_weights},
      {"offload", job_.plan.choice.offload},
      {"activations_outside", job_.plan.choice.activations_outside},
      {"kept_layers", job_.plan.kept_layers},
      {"loss_sum", loss_sum_},
      {"best", best_ ? Json(*best_) : Json(nullptr)},
      {"evaluations_without_improvement", evaluations_without_improvement_},
      {"eval", last_eval_},
      {"loss_scale", {engine_->loss_scale().scale, engine_->loss_scale().clean_steps}}};
  contents.tensors = checkpoint_tensors();
  save_checkpoint(output() / "checkpoints", contents, int(job_.options.save_total_limit));
}

void Trainer::save_weights_to(const fs::path& folder) {
  const Model& model = student();
  if (model.tuning().lora.rank > 0) {
    save_adapter(folder, model, weight_memory());
    complete_adapter(folder, model, weight_memory(), WeightFolder(job_.options.model));
    return write_file_atomically(folder / kAdapterConfig,
                                 describe_adapter(model, fs::absolute(job_.options.model)));
  }
  const WeightFolder originals(job_.options.model);
  save_weights(folder, model, weight_memory(), &originals);
}

void Trainer::save_final_weights() {
  if (job_.options.load_best_model_at_end && fs::exists(best_folder())) {
    if (student().tuning().lora.rank > 0) {
      load_adapter(best_folder(), student(), weight_memory());
    } else {
      load_weights(WeightFolder(best_folder()), student(), weight_memory(), job_.load);
    }
  }
  save_weights_to(output());
}

TrainSummary Trainer::run() {
  const SignalGuard signals;
  if (kept_ && first_step_ < job_.total_steps) keep_states(signals);
  BatchStream batches(*job_.train, job_.train_batches(first_step_));
  {
    Progress progress("training", job_.total_steps, "steps");
    uint64_t last_saved = first_step_;
    last_finish_ = Clock::now();
    for (const StepBatch* batch; !stopped_early_ && batches.next(batch);) {
      step(*batch);
      const uint64_t done = batch->step + 1;
      const bool last = done == job_.total_steps;
      const bool evaluates = job_.eval_every > 0 && (last || done % job_.eval_every == 0);
      const bool saves = job_.save_every > 0 && (last || done % job_.save_every == 0);
      if (last || evaluates || saves || signals.stop_requested()) finish(0);
      const uint64_t finished = first_step_ + steps_done_;
      progress.update(done, fmt::format("loss {:.4f}, {:.0f} tokens/s",
                                        loss_sum_ / double(std::max<uint64_t>(1, finished)),
                                        double(tokens_) / std::max(train_seconds_, 1e-9)));
      const TrainOptions& o = job_.options;
      if (o.logging_steps > 0 && done % uint64_t(o.logging_steps) == 0) {
        say(fmt::format("step {}/{}: mean loss {:.4f}, {:.0f} tokens/s", finished, job_.total_steps,
                        loss_sum_ / double(std::max<uint64_t>(1, finished)),
                        double(tokens_) / std::max(train_seconds_, 1e-9)));
      }
      if (evaluates) {
        evaluate(done);
        const bool better = improved(last_eval_);
        if (better && o.load_best_model_at_end) {
          make_directories(best_folder());
          save_weights_to(best_folder());
        }
        stopped_early_ = o.early_stopping_patience > 0 &&
                         evaluations_without_improvement_ >= o.early_stopping_patience;
      }
      if (saves || (stopped_early_ && job_.save_every > 0)) {
        save(done);
        last_saved = done;
      }
      if (evaluates || saves) {
        // A step's seconds have the waiting for data in them, not these.
        last_finish_ = Clock::now();
      }
      if (signals.stop_requested() && !last) {
        finish(0);
        if (last_saved != done) save(done);
        throw Error(ErrorKind::kInterrupted,
                    fmt::format("stopped at step {} of {}; saved", done, job_.total_steps),
                    "--resume-from-checkpoint latest goes on from here");
      }
    }
  }
  if (stopped_early_) {
    say(fmt::format("stopped early: {} evaluations without improvement",
                    evaluations_without_improvement_));
  }
  save_final_weights();
  return summary();
}

TrainSummary Trainer::summary() const {
  TrainSummary summary;
  summary.plan = job_.summary;
  summary.steps = first_step_ + steps_done_;
  summary.examples = examples_;
  summary.tokens = tokens_;
  summary.train_loss = summary.steps > 0 ? loss_sum_ / double(summary.steps) : 0;
  summary.seconds = train_seconds_;
  summary.data_seconds = job_.data_seconds;
  summary.keeping_seconds = keeping_seconds_;
  summary.tokens_per_second = train_seconds_ > 0 ? double(tokens_) / train_seconds_ : 0;
  summary.examples_per_second = train_seconds_ > 0 ? double(examples_) / train_seconds_ : 0;
  summary.measured_peak_bytes = job_.platform->peak_bytes();
  summary.measured_arena_bytes = engine_->arena_bytes();
  summary.eval = last_eval_;
  summary.stopped_early = stopped_early_;
  summary.teacher = job_.options.teacher;
  summary.distill_temperature = job_.distillation.temperature;
  summary.distill_alpha = job_.distillation.alpha;
  return summary;
}

// A folder that already holds a run is not written over by accident.
void check_output_folder(const TrainOptions& options) {
  if (options.output_dir.empty()) {
    fail(ErrorKind::kUsage, "--output-dir is missing: where the trained model is to be written");
  }
  const fs::path output = options.output_dir;
  make_directories(output);
  const bool holds_run = fs::exists(output / "metrics.jsonl") || fs::exists(output / "checkpoints");
  if (holds_run && options.resume_from_checkpoint.empty() && !options.overwrite_output_dir) {
    throw Error(
        ErrorKind::kUsage, fmt::format("{}: holds an earlier run", output.string()),
        "--resume-from-checkpoint latest goes on with it, --overwrite-output-dir starts anew");
  }
}

std::optional<Resume> find_resume(const TrainOptions& options) {
  const fs::path checkpoints = fs::path(options.output_dir) / "checkpoints";
  if (fs::exists(checkpoints)) clean_stale(checkpoints);
  if (options.resume_from_checkpoint.empty()) {
    fs::remove_all(checkpoints);
    fs::remove_all(fs::path(options.output_dir) / "best");
    return std::nullopt;
  }
  Resume resume;
  if (options.resume_from_checkpoint == "latest") {
    const auto latest = fs::exists(checkpoints) ? latest_checkpoint(checkpoints) : std::nullopt;
    if (!latest) {
      throw Error(ErrorKind::kInput,
                  fmt::format("{}: no checkpoint to resume from", checkpoints.string()),
                  "leave --resume-from-checkpoint out to start from the beginning");
    }
    resume.checkpoint = *latest;
  } else {
    resume.checkpoint = options.resume_from_checkpoint;
    verify_checkpoint(resume.checkpoint);
  }
  resume.step = read_checkpoint_step(resume.checkpoint);
  resume.state = read_checkpoint_state(resume.checkpoint);
  return resume;
}

}  // namespace

TrainSummary train(const TrainOptions& options,
                   const std::function<void(const StepMetrics&)>& on_step) {
  check_output_folder(options);
  const FolderLock lock(options.output_dir);
  std::optional<Resume> resume = find_resume(options);
  std::optional<PreferredPlan> preferred;
  if (resume) {
    const Json& state = resume->state;
    preferred = {
        state.at("micro_batch_tokens"),
        {recompute_of(state.at("recompute")), state.at("head_chunk"), state.at("converts_weights"),
         state.at("offload").get<Offload>(), state.value("activations_outside", false)},
        state.value("kept_layers", 0)};
  }
  const TrainingJob job = prepare_training(options, preferred);
  if (!job.summary.fits) throw DoesNotFit(job.summary);
  say(job.summary.to_text());
  write_skipped_list(fs::path(options.output_dir) / "skipped.jsonl",
                     {job.train.get(), job.validation.get()});
  const TrainSummary summary = Trainer(job, std::move(resume), on_step).run();
  // Only now: the arena is gone, and writing the vocabulary takes memory that no plan has to count.
  save_description(options.output_dir, job.folder.config, head_of(job.task), *job.folder.tokenizer,
                   job.folder.path);
  write_file_atomically(fs::path(options.output_dir) / "run.json", summary.to_json() + "\n");
  write_run_report(options.output_dir, summary);
  return summary;
}

std::string TrainSummary::to_json() const {
  OrderedJson json = {{"version", SNUG_VERSION},
                      {"steps", steps},
                      {"examples", examples},
                      {"tokens", tokens},
                      {"seconds", seconds},
                      {"data_seconds", data_seconds},
                      {"keeping_seconds", keeping_seconds},
                      {"tokens_per_second", tokens_per_second},
                      {"examples_per_second", examples_per_second},
                      {"train_loss", train_loss},
                      {"stopped_early", stopped_early},
                      {"predicted_peak_bytes", plan.peak_bytes},
                      {"measured_peak_bytes", measured_peak_bytes},
                      {"predicted_arena_bytes", plan.arena_bytes},
                      {"measured_arena_bytes", measured_arena_bytes}};
  if (!teacher.empty()) {
    json["teacher"] = teacher;
    json["distill_temperature"] = distill_temperature;
    json["distill_alpha"] = distill_alpha;
  }
  for (const auto& [name, value] : eval) json["eval_" + name] = value;
  json["plan"] = OrderedJson::parse(plan.to_json());
  return json.dump(2);
}

}  // namespace snug
