#include "train/training_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/process_memory.h"
#include "core/progress.h"
#include "model/adapter.h"
#include "model/distilled.h"
#include "model/weight_files.h"
#include "plan/plan_summary.h"
#include "train/alternatives.h"
#include "train/calibration.h"
#include "train/checkpoint.h"
#include "train/keeping.h"
#include "train/training_data.h"

namespace snug {
namespace {

void check_options(const TrainOptions& o) {
  const auto positive = [](const char* flag, double value) {
    if (!(value > 0 && std::isfinite(value))) {
      fail(ErrorKind::kUsage, "{} is {}, expected a number above zero", flag, value);
    }
  };
  const auto not_negative = [](const char* flag, double value) {
    if (!(value >= 0 && std::isfinite(value))) {
      fail(ErrorKind::kUsage, "{} is {}, expected zero or more", flag, value);
    }
  };
  const auto below_one = [](const char* flag, double value) {
    if (!(value >= 0 && value < 1)) {
      fail(ErrorKind::kUsage, "{} is {}, expected at least 0 and below 1", flag, value);
    }
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
  not_negative("--lora-rank", double(o.lora_rank));
  positive("--lora-alpha", o.lora_alpha);
  below_one("--lora-dropout", o.lora_dropout);
  if (o.lora_rank == 0 && !o.lora_target_modules.empty()) {
    throw Error(ErrorKind::kUsage, "--lora-target-modules without adapters",
                "--lora-rank 8 makes them");
  }
  positive("--num-train-epochs", o.num_train_epochs);
  positive("--adam-epsilon", o.adam_epsilon);
  positive("--eval-steps", double(o.eval_steps));
  positive("--save-steps", double(o.save_steps));
  positive("--save-total-limit", double(o.save_total_limit));
  below_one("--momentum", o.momentum);
  below_one("--adam-beta1", o.adam_beta1);
  below_one("--adam-beta2", o.adam_beta2);
  if (o.warmup_ratio < 0 || o.warmup_ratio > 1) {
    fail(ErrorKind::kUsage, "--warmup-ratio is {}, expected between 0 and 1", o.warmup_ratio);
  }
  if (o.dropout) below_one("--dropout", *o.dropout);
  if (o.teacher.empty() && (o.distill_temperature || o.distill_alpha)) {
    fail(ErrorKind::kUsage, "--distill-temperature and --distill-alpha need --teacher DIR");
  }
  if (o.distill_temperature) positive("--distill-temperature", *o.distill_temperature);
  if (o.distill_alpha && !(*o.distill_alpha >= 0 && *o.distill_alpha <= 1)) {
    fail(ErrorKind::kUsage, "--distill-alpha is {}, expected between 0 and 1", *o.distill_alpha);
  }
  not_negative("--block-size", double(o.block_size));
  not_negative("--stride", double(o.stride.value_or(0)));
  below_one("--label-smoothing-factor", o.label_smoothing);
  below_one("--mlm-probability", o.mlm_probability);
  const double split = o.validation_split_percentage.value_or(0);
  if (!(split >= 0 && split < 100)) {
    fail(ErrorKind::kUsage,
         "--validation-split-percentage is {}, expected at least 0 and below 100", split);
  }
  not_negative("--max-train-samples", double(o.max_train_samples));
  not_negative("--max-eval-samples", double(o.max_eval_samples));
}

void check_choosing(const TrainingJob& job) {
  const TrainOptions& o = job.options;
  const bool evaluates = job.validation && o.eval_strategy != "no";
  if ((o.load_best_model_at_end || o.early_stopping_patience > 0) && !evaluates) {
    throw Error(ErrorKind::kUsage, "choosing the best model or stopping early needs evaluations",
                "give --validation FILE or --validation-split-percentage, and --eval-strategy "
                "steps or epoch");
  }
}

uint64_t interval(const std::string& flag, const std::string& strategy, int64_t steps,
                  uint64_t steps_per_epoch) {
  if (strategy == "no") return 0;
  if (strategy == "steps") return uint64_t(steps);
  if (strategy == "epoch") return steps_per_epoch;
  fail(ErrorKind::kUsage, "{} is \"{}\", expected no, steps or epoch", flag, strategy);
}

// The rates of this run; the configuration that is saved keeps its own.
ModelConfig with_dropout(const TrainOptions& options, ModelConfig config) {
  if (!options.dropout) return config;
  config.embedding_dropout = config.hidden_dropout = config.attention_dropout = *options.dropout;
  config.classifier_dropout = *options.dropout;
  if (config.family == Family::kDistilBert) config.answer_dropout = *options.dropout;
  return config;
}

Tuning tuning_of(const TrainOptions& o) {
  return {.freeze = o.freeze,
          .lora = {.rank = o.lora_rank,
                   .alpha = o.lora_alpha,
                   .dropout = o.lora_dropout,
                   .targets = o.lora_target_modules},
          .quantize = !o.quantize.empty()};
}

// Of a folder whose weights are int8 only the head can be trained.
void check_trained(const TrainOptions& options, const ParameterTable& parameters,
                   bool quantized_folder) {
  if (quantized_folder && options.lora_rank > 0) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: its weights are int8, to which adapters cannot be added later",
                            options.model),
                "the folder it was made from with --quantize int8 occupies as little, and its "
                "adapters work with it");
  }
  const auto is_wrong = [](const Parameter& p) { return p.trained && p.quantized; };
  const auto wrong = std::ranges::find_if(parameters, is_wrong);
  if (wrong == parameters.end()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}: {} of its matrices are int8, which cannot be trained ({}{})",
                          options.model, std::ranges::count_if(parameters, is_wrong), wrong->name,
                          std::ranges::count_if(parameters, is_wrong) > 1 ? ", ..." : ""),
              "--freeze all-but-head trains the head alone; the folder it was made from can be "
              "trained, with --quantize int8 --lora-rank 8 too");
}

void check_length(const TrainingJob& job) {
  const int64_t longest =
      std::max<int64_t>(job.train->longest(), job.validation ? job.validation->longest() : 0);
  if (longest <= job.model->max_length()) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("{} has {} positions, but texts have up to {} tokens", job.options.teacher,
                  job.model->max_length(), longest),
      fmt::format("{} {} makes them fit", job.task == Task::kClm ? "--block-size" : "--max-length",
                  job.model->max_length()));
}

void set_schedule(TrainingJob& job) {
  const TrainOptions& o = job.options;
  job.steps_per_epoch = steps_per_epoch(job.train->epoch_examples(), uint64_t(o.batch_size));
  job.total_steps = o.max_steps > 0
                        ? uint64_t(o.max_steps)
                        : uint64_t(std::ceil(o.num_train_epochs * double(job.steps_per_epoch)));
  job.schedule.kind = parse_schedule(o.lr_scheduler_type);
  job.schedule.peak = o.learning_rate;
  job.schedule.total_steps = job.total_steps;
  job.schedule.warmup_steps = o.warmup_steps > 0
                                  ? uint64_t(o.warmup_steps)
                                  : uint64_t(std::ceil(o.warmup_ratio * double(job.total_steps)));
  const std::string eval = !o.eval_strategy.empty() ? o.eval_strategy
                           : job.validation         ? "epoch"
                                                    : "no";
  if (eval != "no" && !job.validation) {
    fail(ErrorKind::kUsage,
         "--eval-strategy {} needs --validation FILE or --validation-split-percentage", eval);
  }
  job.eval_every = interval("--eval-strategy", eval, o.eval_steps, job.steps_per_epoch);
  job.save_every = interval("--save-strategy", o.save_strategy, o.save_steps, job.steps_per_epoch);
}

void pin_offload(const std::string& flag, PlanRequest& request) {
  if (flag == "auto") return;
  PlanChoice asked;
  if (!parse_offload(flag, asked)) {
    fail(ErrorKind::kUsage,
         "--offload is \"{}\", expected auto, none, or any of state,gradients,activations", flag);
  }
  if (asked.offload == Offload::kGradients && request.device.kind == DeviceKind::kCpu) {
    throw Error(ErrorKind::kUsage,
                "--offload gradients is for GPUs: on the CPU the host's memory is all there is",
                "--offload state keeps the optimizer's state in a file");
  }
  request.pinned_offload = asked.offload;
  request.activations_outside = asked.activations_outside;
  if (!asked.activations_outside || !request.pinned_recompute) return;
  const Recomputation& recompute = *request.pinned_recompute;
  if (std::find(recompute.begin() + 1, recompute.end(), Parts::all()) != recompute.end()) return;
  throw Error(ErrorKind::kUsage,
              "--offload activations moves what recomputed layers keep, but --recompute leaves no "
              "layer to be recomputed whole",
              "--recompute all, a number of layers, or leaving it out would be right");
}

// The same parts of every layer, or the first so many layers whole; the embeddings with either.
std::optional<Recomputation> pinned_recompute(const std::string& flag, int layers) {
  if (flag == "auto") return std::nullopt;
  Parts parts;
  if (parse_parts(flag, parts)) {
    Recomputation recompute(size_t(layers) + 1, parts);
    if (parts != Parts::all()) recompute[0] = {};
    return recompute;
  }
  int count = -1;
  const auto [end, error] = std::from_chars(flag.data(), flag.data() + flag.size(), count);
  if (error != std::errc() || end != flag.data() + flag.size() || count < 0 || count > layers) {
    std::vector<std::string_view> names;
    for (const PartName& known : kPartNames) names.push_back(known.name);
    fail(ErrorKind::kUsage,
         "--recompute is \"{}\", expected auto, none, all, a number of layers from 0 to {}, or "
         "parts of every layer: {}",
         flag, layers, fmt::join(names, ","));
  }
  Recomputation recompute(size_t(layers) + 1);
  std::fill_n(recompute.begin(), count > 0 ? count + 1 : 0, Parts::all());
  return recompute;
}

Workload workload_of(const TrainingJob& job, const TrainOptions& options) {
  Workload workload;
  workload.batch_size =
      int64_t(std::min(uint64_t(options.batch_size), job.train->epoch_examples()));
  workload.longest = job.train->longest();
  workload.mean_length = int64_t(job.train->tokens() / std::max<uint64_t>(1, job.train->rows()));
  if (job.validation) {
    workload.longest = std::max<int64_t>(workload.longest, job.validation->longest());
  }
  if (options.max_length > 0) {  // less than what the data was read with
    workload.longest = std::min(workload.longest, options.max_length);
    workload.mean_length = std::min(workload.mean_length, options.max_length);
  }
  workload.epochs = double(job.total_steps) / double(job.steps_per_epoch) *
                    double(job.train->epoch_examples()) / double(job.train->rows());
  workload.target_rule = target_rule(job.task);
  workload.masked_share = options.mlm_probability;
  workload.sequences_per_example = job.train->most_sequences();
  if (job.validation) {
    workload.sequences_per_example =
        std::max<int64_t>(workload.sequences_per_example, job.validation->most_sequences());
  }
  workload.step_tokens = workload.batch_size * workload.longest;
  if (job.train->shares().empty()) {  // no row comes twice in a step
    workload.step_tokens = std::min(
        workload.step_tokens, std::max<int64_t>(int64_t(job.train->tokens()), workload.longest));
  }
  return workload;
}

std::optional<Speed> speed_of(const TrainingJob& job, const PlanRequest& request) {
  if (!job.options.device_profile.empty() && job.options.calibrate) {
    throw Error(ErrorKind::kUsage,
                "--calibrate needs the device itself, --device-profile is only its description",
                "leave one of them out");
  }
  return calibrated_speed(
      *job.platform, request,
      {.cache_folder = cache_folder(job.options), .run = job.options.calibrate});
}

// The preferred plan, or the best.
Plan plan_like(const PlanRequest& request, const std::optional<PreferredPlan>& preferred) {
  if (preferred) {
    PlanRequest same = request;
    same.pinned_capacity = preferred->capacity_tokens;
    same.pinned_choice = preferred->choice;
    Plan plan = make_plan(same);
    if (plan.fits) return plan;
    warn(
        "the plan of the checkpoint does not fit this budget; another one is used, which changes "
        "results by rounding");
  }
  return make_plan(request);
}

// What reading the data once, to keep what frozen layers give, takes beyond what training takes
// later.
uint64_t filling_bytes(const TrainingJob& job, const Dims& capacity) {
  BatchOptions filling = job.filling_batches(), training = job.train_batches(0);
  filling.capacity_tokens = training.capacity_tokens = capacity.tokens;
  const uint64_t first = BatchStream::buffer_bytes(job.train->unmixed(), filling),
                 later = BatchStream::buffer_bytes(*job.train, training);
  return first - std::min(first, later);
}

void plan_job(TrainingJob& job, const std::optional<PreferredPlan>& preferred) {
  PlanRequest request = plan_request(job, job.options, *job.model);
  request.speed = speed_of(job, request);
  if (job.options.calibrate) {
    request.process = plan_request(job, job.options, *job.model).process;  // what timing has left
  }
  const Keeping keeping = find_keeping(job, request);
  const bool demanded = job.options.keep_frozen == "on";
  if (!demanded) job.plan = plan_like(request, preferred);
  // A resumed run keeps what it kept before.
  if (demanded || (keeping.layers > 0 && (!preferred || preferred->kept_layers > 0))) {
    PlanRequest with_states = request;
    with_states.graph.kept_layers = keeping.layers;
    with_states.process.buffer_bytes =
        [&job, otherwise = request.process.buffer_bytes](const Dims& capacity) {
          return otherwise(capacity) + filling_bytes(job, capacity);
        };
    Plan plan = plan_like(with_states, preferred);
    if (demanded ||
        (plan.fits && (preferred || !job.plan.fits || plan.step_seconds < job.plan.step_seconds))) {
      // With less memory, they would not be kept.
      if (!demanded) {
        plan.minimum_budget_bytes =
            std::min(plan.minimum_budget_bytes, job.plan.minimum_budget_bytes);
      }
      job.plan = std::move(plan);
      job.keeping = keeping.size;
      request = with_states;
    }
  }
  if (job.plan.device.kind == DeviceKind::kCuda &&
      job.plan.host_peak_bytes > request.host_budget_bytes) {
    throw Error(
        ErrorKind::kBudget,
        fmt::format("keeping {} outside of the GPU takes {} of the host, of which {} may be used",
                    offload_text(job.plan.choice), format_bytes(job.plan.host_peak_bytes),
                    format_bytes(request.host_budget_bytes)),
        "raise --host-memory, or use --offload none");
  }
  job.summary = summarize(job.plan, job.platform->name());
  if (job.keeping) {
    job.summary.kept_bytes = job.keeping->file_bytes();
    job.summary.drops_less = keeping.drops_less;
  } else {
    job.summary.not_kept = keeping.why_not;
  }
  if (!job.plan.fits) add_alternatives(job, job.summary);
  if (job.options.sweep) job.summary.sweep = summarize(sweep_plans(request), request.budget_bytes);
}

}  // namespace

std::unique_ptr<Model> build_model(const TrainingJob& job, const TrainOptions& options) {
  const ModelConfig config = with_dropout(options, job.folder.config);
  if (!job.teacher) return make_model(config, head_of(job.task), tuning_of(options));
  return make_distilled({config, job.teacher->config, tuning_of(options)}, head_of(job.task),
                        job.distillation);
}

PlanRequest plan_request(const TrainingJob& job, const TrainOptions& o, const Model& model) {
  PlanRequest request;
  request.model = &model;
  request.graph.compute = job.platform->compute_type(o.precision);
  request.graph.loss = job.loss();
  request.optimizer = parse_optimizer(o.optim, o.momentum);
  if (request.optimizer == Optimizer::kAdamWBf16 && request.graph.compute == DType::kF16) {
    throw Error(ErrorKind::kUsage,
                "--optim adamw_bf16 keeps weights in bf16, which products in fp16 cannot read",
                "add --precision bf16, or fp32 where the device has no bf16");
  }
  request.workload = workload_of(job, o);
  request.workload.label_words = label_words(model.config(), model.head(), job.loss());
  request.process.buffer_bytes = [&job](const Dims& capacity) {
    BatchOptions batches = job.train_batches(0);
    batches.capacity_tokens = capacity.tokens;
    uint64_t bytes = kCheckpointBufferBytes + BatchStream::buffer_bytes(*job.train, batches);
    if (!job.validation) return bytes;
    const Dataset& texts = *job.validation;
    if (is_language(job.task)) return bytes + BatchStream::buffer_bytes(texts, batches);
    return bytes + FileEvaluation::bytes(job.evaluation(),
                                         {.files = texts.sources(),
                                          .rows = texts.rows(),
                                          .longest_text_bytes = texts.longest_text_bytes(),
                                          .longest_word_bytes = texts.longest_word_bytes()},
                                         capacity);
  };
  request.budget_bytes = job.platform->budget(o.memory_bytes);
  job.platform->complete(request);
  request.host_budget_bytes =
      std::min(o.host_memory_bytes.value_or(usable_memory_bytes()), usable_memory_bytes());
  request.pinned_recompute = pinned_recompute(o.recompute, model.layers());
  pin_offload(o.offload, request);
  if (o.micro_batch_tokens > 0) {
    if (o.micro_batch_tokens < request.workload.longest) {
      fail(ErrorKind::kUsage, "--micro-batch-tokens {} is less than the longest text's {} tokens",
           o.micro_batch_tokens, request.workload.longest);
    }
    request.pinned_capacity = o.micro_batch_tokens;
  }
  return request;
}

BatchOptions TrainingJob::train_batches(uint64_t first_step) const {
  BatchOptions batches;
  batches.seed = options.seed;
  batches.batch_size = uint64_t(options.batch_size);
  batches.capacity_tokens = plan.capacity.tokens;
  batches.shuffle = true;
  batches.token_task = token_task(task);
  batches.class_weights = class_weights;
  batches.masks = masks;
  batches.first_step = first_step;
  batches.last_step = total_steps;
  return batches;
}

// A step has no more than one of training.
BatchOptions TrainingJob::filling_batches() const {
  BatchOptions batches = train_batches(0);
  batches.batch_size = std::min(batches.batch_size, train->epoch_examples());
  batches.shuffle = false;
  batches.last_step = snug::steps_per_epoch(train->rows(), batches.batch_size);
  return batches;
}

BatchOptions TrainingJob::validation_batches() const {
  BatchOptions batches = train_batches(0);
  batches.shuffle = false;
  batches.last_step = std::numeric_limits<uint64_t>::max();
  return batches;
}

FileEvaluation::Setup TrainingJob::evaluation() const {
  return {.options = options,
          .task = task,
          .config = folder.config,
          .tokenizer = *folder.tokenizer,
          .encoding = encoding_options(options, task, folder.config.max_length()),
          .scratch = cache_folder(options)};
}

DoesNotFit::DoesNotFit(const PlanSummary& plan)
    : Error(ErrorKind::kBudget, plan.to_text(),
            fmt::format("the least that works is --memory {}", plan.minimum_budget_bytes)),
      plan_(plan) {}

TrainingJob prepare_training(const TrainOptions& options,
                             const std::optional<PreferredPlan>& preferred) {
  check_options(options);
  TrainingJob job;
  job.options = options;
  job.platform = open_platform(options);
  job.folder = open_model_folder(options.model);
  if (is_adapter_folder(options.model)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{}: holds adapters; training goes on from whole models", options.model),
        "snug merge --adapter " + options.model + " --output-dir DIR makes one");
  }
  job.task = task_of(options, job.folder.config);
  job.platform->warm_up();
  if (!options.teacher.empty()) {
    job.teacher = open_teacher(options.teacher, job.folder, job.task);
    job.distillation.temperature =
        float(options.distill_temperature.value_or(job.distillation.temperature));
    job.distillation.alpha = float(options.distill_alpha.value_or(job.distillation.alpha));
  }
  // A classifier's size follows from the data; what a family cannot learn at all is said before it
  // is read.
  const auto build = [&] { job.model = build_model(job, options); };
  if (is_language(job.task)) build();
  const auto start = std::chrono::steady_clock::now();
  open_training_data(job);
  job.data_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!is_language(job.task)) build();
  check_length(job);
  check_trained(options, job.model->parameters(), job.folder.config.quantized);
  check_choosing(job);
  set_schedule(job);
  job.load = {.seed = options.seed,
              .initializer_range = job.folder.config.initializer_range,
              .ignore_mismatched_sizes = options.ignore_mismatched_sizes};
  check_weights(WeightFolder(options.model), job.model->student(), job.load);
  plan_job(job, preferred);
  return job;
}

PlanSummary plan(const TrainOptions& options) {
  return prepare_training(options, std::nullopt).summary;
}

}  // namespace snug
