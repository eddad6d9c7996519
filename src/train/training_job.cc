#include "train/training_job.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/progress.h"
#include "core/threads.h"
#include "model/weight_files.h"
#include "train/checkpoint.h"

namespace snug {
namespace {

void check_options(const TrainOptions& o) {
  const auto positive = [](const char* flag, double value) {
    if (!(value > 0)) fail(ErrorKind::kUsage, "{} is {}, expected a number above zero", flag, value);
  };
  const auto not_negative = [](const char* flag, double value) {
    if (!(value >= 0)) fail(ErrorKind::kUsage, "{} is {}, expected zero or more", flag, value);
  };
  const auto below_one = [](const char* flag, double value) {
    if (!(value >= 0 && value < 1)) fail(ErrorKind::kUsage, "{} is {}, expected at least 0 and below 1", flag, value);
  };
  positive("--batch-size", double(o.batch_size));
  not_negative("--learning-rate", o.learning_rate);
  not_negative("--weight-decay", o.weight_decay);
  not_negative("--max-grad-norm", o.max_grad_norm);
  not_negative("--max-steps", double(o.max_steps));
  not_negative("--max-length", double(o.max_length));
  not_negative("--warmup-steps", double(o.warmup_steps));
  not_negative("--early-stopping-patience", double(o.early_stopping_patience));
  not_negative("--micro-batch-tokens", double(o.micro_batch_tokens));
  positive("--num-train-epochs", o.num_train_epochs);
  positive("--adam-epsilon", o.adam_epsilon);
  positive("--eval-steps", double(o.eval_steps));
  positive("--save-steps", double(o.save_steps));
  positive("--save-total-limit", double(o.save_total_limit));
  below_one("--adam-beta1", o.adam_beta1);
  below_one("--adam-beta2", o.adam_beta2);
  if (o.warmup_ratio < 0 || o.warmup_ratio > 1) {
    fail(ErrorKind::kUsage, "--warmup-ratio is {}, expected between 0 and 1", o.warmup_ratio);
  }
  if (o.dropout) below_one("--dropout", *o.dropout);
  if (!o.task.empty() && o.task != "classify") {
    fail(ErrorKind::kUsage, "--task {} is not there yet; this version trains classify", o.task);
  }
  const bool evaluates = !o.validation.empty() && o.eval_strategy != "no";
  if ((o.load_best_model_at_end || o.early_stopping_patience > 0) && !evaluates) {
    throw Error(ErrorKind::kUsage, "choosing the best model or stopping early needs evaluations",
                "give --validation FILE, and --eval-strategy steps or epoch");
  }
}

uint64_t interval(const std::string& flag, const std::string& strategy, int64_t steps, uint64_t steps_per_epoch) {
  if (strategy == "no") return 0;
  if (strategy == "steps") return uint64_t(steps);
  if (strategy == "epoch") return steps_per_epoch;
  fail(ErrorKind::kUsage, "{} is \"{}\", expected no, steps or epoch", flag, strategy);
}

DatasetOptions dataset_options(const TrainingJob& job) {
  const TrainOptions& o = job.options;
  DatasetOptions result;
  result.columns = {o.text_column, o.text_pair_column, o.label_column};
  result.has_header = o.header;
  result.max_length = text_length(o, job.folder.config.max_position_embeddings);
  result.cache_folder = cache_folder(o);
  result.threads = num_threads();
  return result;
}

void open_data(TrainingJob& job) {
  const TrainOptions& o = job.options;
  DatasetOptions data = dataset_options(job);
  const LabelSet trained = o.ignore_mismatched_sizes ? LabelSet{} : job.folder.trained_labels();
  if (!trained.names.empty()) data.known_labels = &trained;
  job.train = std::make_unique<Dataset>(Dataset::open(o.train, *job.folder.tokenizer, data));
  job.folder.config.labels = job.train->labels().names;
  if (o.validation.empty()) return;
  data.known_labels = &job.train->labels();
  job.validation = std::make_unique<Dataset>(Dataset::open(o.validation, *job.folder.tokenizer, data));
  if (job.validation->source_hash() == job.train->source_hash()) {
    warn(fmt::format("{} and {} have the same contents: the scores will say nothing", o.train, o.validation));
  }
}

// The rates of this run; the configuration that is saved keeps its own.
BertConfig with_dropout(const TrainOptions& options, BertConfig config) {
  if (!options.dropout) return config;
  config.hidden_dropout = config.attention_dropout = *options.dropout;
  config.classifier_dropout = *options.dropout;
  return config;
}

void set_schedule(TrainingJob& job) {
  const TrainOptions& o = job.options;
  job.steps_per_epoch = steps_per_epoch(job.train->rows(), uint64_t(o.batch_size));
  job.total_steps = o.max_steps > 0 ? uint64_t(o.max_steps)
                                    : uint64_t(std::ceil(o.num_train_epochs * double(job.steps_per_epoch)));
  job.schedule.kind = parse_schedule(o.lr_scheduler_type);
  job.schedule.peak = o.learning_rate;
  job.schedule.total_steps = job.total_steps;
  job.schedule.warmup_steps =
      o.warmup_steps > 0 ? uint64_t(o.warmup_steps) : uint64_t(std::ceil(o.warmup_ratio * double(job.total_steps)));
  const std::string eval = !o.eval_strategy.empty() ? o.eval_strategy : o.validation.empty() ? "no" : "epoch";
  if (eval != "no" && o.validation.empty()) {
    fail(ErrorKind::kUsage, "--eval-strategy {} needs --validation FILE", eval);
  }
  job.eval_every = interval("--eval-strategy", eval, o.eval_steps, job.steps_per_epoch);
  job.save_every = interval("--save-strategy", o.save_strategy, o.save_steps, job.steps_per_epoch);
}

std::optional<int> pinned_recompute(const std::string& flag, int layers) {
  if (flag == "auto") return std::nullopt;
  if (flag == "none") return 0;
  if (flag == "all") return layers;
  int count = -1;
  const auto [end, error] = std::from_chars(flag.data(), flag.data() + flag.size(), count);
  if (error != std::errc() || end != flag.data() + flag.size() || count < 0 || count > layers) {
    fail(ErrorKind::kUsage, "--recompute is \"{}\", expected auto, none, all, or a number of layers from 0 to {}", flag,
         layers);
  }
  return count;
}

Workload workload_of(const TrainingJob& job) {
  Workload workload;
  workload.batch_size = int64_t(std::min(uint64_t(job.options.batch_size), job.train->rows()));
  workload.longest = job.train->longest();
  workload.mean_length = int64_t(job.train->tokens() / std::max<uint64_t>(1, job.train->rows()));
  if (job.validation) workload.longest = std::max<int64_t>(workload.longest, job.validation->longest());
  workload.step_tokens = int64_t(std::min(uint64_t(workload.batch_size) * uint64_t(workload.longest),
                                          std::max(job.train->tokens(), uint64_t(workload.longest))));
  return workload;
}

PlanRequest plan_request(const TrainingJob& job) {
  const TrainOptions& o = job.options;
  PlanRequest request;
  request.model = job.model.get();
  request.graph.compute = job.platform->compute_type(o.precision);
  request.workload = workload_of(job);
  request.process.buffer_bytes = [&job](const Dims& capacity) {
    BatchOptions batches = job.train_batches(0);
    batches.capacity_tokens = capacity.tokens;
    uint64_t bytes = kCheckpointBufferBytes + BatchStream::buffer_bytes(*job.train, batches);
    if (job.validation) bytes += BatchStream::buffer_bytes(*job.validation, batches);
    return bytes;
  };
  request.budget_bytes = job.platform->budget(o.memory_bytes);
  job.platform->complete(request);
  request.pinned_recompute = pinned_recompute(o.recompute, job.model->layers());
  if (o.micro_batch_tokens > 0) {
    if (o.micro_batch_tokens < request.workload.longest) {
      fail(ErrorKind::kUsage, "--micro-batch-tokens {} is less than the longest text's {} tokens", o.micro_batch_tokens,
           request.workload.longest);
    }
    request.pinned_capacity = o.micro_batch_tokens;
  }
  return request;
}

// Shorter texts are the one inexact technique there is so far: what would they need?
void add_alternatives(PlanRequest request, PlanSummary& summary) {
  for (const int64_t length : {256, 128, 64, 32}) {
    if (length >= request.workload.longest) continue;
    request.workload.longest = length;
    request.workload.step_tokens = std::min(request.workload.step_tokens, request.workload.batch_size * length);
    const Plan shorter = make_plan(request);
    if (!shorter.fits) continue;
    summary.would_fit_with.push_back({fmt::format("--max-length {}", length),
                                      summary.minimum_budget_bytes - shorter.minimum_budget_bytes,
                                      shorter.minimum_budget_bytes});
    return;
  }
}

void plan_job(TrainingJob& job, const std::optional<PlanChoice>& preferred) {
  PlanRequest request = plan_request(job);
  if (preferred) {
    PlanRequest same = request;
    same.pinned_capacity = preferred->capacity_tokens;
    same.pinned_recompute = preferred->recomputed_layers;
    job.plan = make_plan(same);
    if (!job.plan.fits) {
      warn("the plan of the checkpoint does not fit this budget; another one is used, which changes results by rounding");
    }
  }
  if (!job.plan.fits) job.plan = make_plan(request);
  job.summary = summarize(job.plan, job.platform->name());
  if (!job.plan.fits) add_alternatives(std::move(request), job.summary);
}

}  // namespace

size_t text_length(const CommonOptions& options, int64_t positions) {
  if (options.max_length == 0) return size_t(positions);
  if (options.max_length > positions) {
    fail(ErrorKind::kUsage, "--max-length {} is more than the {} positions this model has", options.max_length, positions);
  }
  if (options.max_length < 3) fail(ErrorKind::kUsage, "--max-length {} leaves no room for text", options.max_length);
  return size_t(options.max_length);
}

BatchOptions TrainingJob::train_batches(uint64_t first_step) const {
  BatchOptions batches;
  batches.seed = options.seed;
  batches.batch_size = uint64_t(options.batch_size);
  batches.capacity_tokens = plan.capacity.tokens;
  batches.shuffle = true;
  batches.first_step = first_step;
  batches.last_step = total_steps;
  return batches;
}

BatchOptions TrainingJob::validation_batches() const {
  BatchOptions batches = train_batches(0);
  batches.shuffle = false;
  batches.last_step = std::numeric_limits<uint64_t>::max();
  return batches;
}

TrainingJob prepare_training(const TrainOptions& options, const std::optional<PlanChoice>& preferred) {
  check_options(options);
  TrainingJob job;
  job.options = options;
  job.platform = open_platform(options);
  job.folder = open_model_folder(options.model);
  job.platform->warm_up();
  open_data(job);
  set_schedule(job);
  job.model = make_bert(with_dropout(options, job.folder.config), Head::kClassifier);
  job.load = {.seed = options.seed,
              .initializer_range = job.folder.config.initializer_range,
              .ignore_mismatched_sizes = options.ignore_mismatched_sizes};
  check_weights(WeightFolder(options.model), job.model->parameters(), job.load);
  plan_job(job, preferred);
  return job;
}

PlanSummary plan(const TrainOptions& options) { return prepare_training(options, std::nullopt).summary; }

}  // namespace snug
