#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/size.h"
#include "core/error.h"
#include "core/progress.h"
#include "train/training_job.h"

namespace snug {
namespace {

struct TrainingFlags {
  TrainOptions options;
  std::optional<int64_t> batch, per_device_batch;
  int64_t accumulation = 1;
  bool json = false, ignored = false;
  std::vector<const CLI::Option*> of_adapters;  // that mean nothing without --lora-rank

  TrainOptions resolved() const {
    TrainOptions result = options;
    if (batch && per_device_batch && *batch != *per_device_batch) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("--batch-size {} and --per-device-train-batch-size {} are the same flag",
                      *batch, *per_device_batch),
          "leave one of them out; --gradient-accumulation-steps multiplies either");
    }
    result.batch_size = batch.value_or(per_device_batch.value_or(options.batch_size));
    if (__builtin_mul_overflow(result.batch_size, accumulation, &result.batch_size)) {
      fail(ErrorKind::kUsage, "--gradient-accumulation-steps {} makes the batch too large",
           accumulation);
    }
    for (const CLI::Option* option : of_adapters) {
      if (options.lora_rank > 0 || option->count() == 0) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} without adapters", shown_names(*option).front()),
                  "--lora-rank 8 makes them");
    }
    return result;
  }
};

void add_data_flags(CLI::App& command, TrainingFlags& flags) {
  TrainOptions& o = flags.options;
  command.add_option("--task", o.task,
                     "classify, multi-label, regress (a number), tag (words), qa (answers in a "
                     "text), clm (write on), mlm (fill in) "
                     "[from the model and the data]");
  add_files_option(command, spellings("--train,--train-file"), o.train,
                   "training data: .csv, .tsv, .jsonl, .txt; tag: .conll, .jsonl; qa: SQuAD's "
                   ".json, .jsonl; also .gz or .zst; several "
                   "files or patterns (*, ?), separated by commas, with weights if wanted: "
                   "a.csv:0.7,b-*.csv:0.3")
      ->required();
  add_files_option(command, spellings("--validation,--validation-file"), o.validation,
                   "validation data, one or several files");
  command.add_option(spellings("--validation-split-percentage"), o.validation_split_percentage,
                     "without --validation: this share of the training data is kept for it, the "
                     "end of each file in clm and mlm, else texts chosen by the seed [clm and "
                     "mlm: 5, else 0]");
  command
      .add_option(spellings("--max-train-samples"), o.max_train_samples,
                  "train on the first so many texts alone; 0: all")
      ->capture_default_str();
  command
      .add_option(spellings("--max-eval-samples"), o.max_eval_samples,
                  "evaluate on the first so many texts alone; 0: all")
      ->capture_default_str();
  command
      .add_option(spellings("--block-size"), o.block_size,
                  "clm: tokens a block; 0: as many as the model has positions")
      ->capture_default_str();
  command.add_flag("--concat,!--no-concat", o.concat,
                   "clm: documents end to end in blocks; --no-concat: each is an example, or "
                   "several where it is longer than a block [on]");
  command.add_flag(spellings("--attention-across-documents"), o.attention_across_documents,
                   "clm: tokens see the documents before their own in a block");
  command
      .add_option(spellings("--mlm-probability"), o.mlm_probability,
                  "mlm: share of the tokens to guess")
      ->capture_default_str();
  command.add_flag(spellings("--whole-word-mask"), o.whole_word_mask,
                   "mlm: all tokens of a word, or none");
  command
      .add_option(spellings("--label-smoothing-factor"), o.label_smoothing,
                  "classify, tag: this share of every label is spread over all classes")
      ->capture_default_str();
  command.add_option(spellings("--class-weights"), o.class_weights,
                     "classify, tag: balanced (rare classes count more), or a weight for each "
                     "class, comma-separated [all the same]");
  add_column_flags(command, o, /*with_label=*/true);
  add_long_text_flags(command, o);
  add_bad_rows_flag(command, o);
  command.add_option(spellings("--cache-dir"), o.cache_dir,
                     "where tokenized data is kept [~/.cache/snug]");
  command.add_flag(spellings("--ignore-mismatched-sizes"), o.ignore_mismatched_sizes,
                   "make a new head where the model's has another number of classes");
}

void add_batch_flags(CLI::App& command, TrainingFlags& flags) {
  const auto above_zero = [](const std::string& text) {
    return text.starts_with('-') || text == "0" ? text + " is not above 0" : "";
  };
  command
      .add_option(spellings("--batch-size"), flags.batch,
                  "examples per step; how they are split is snug's business")
      ->default_str(std::to_string(flags.options.batch_size));
  command
      .add_option(spellings("--per-device-train-batch-size"), flags.per_device_batch,
                  "another name of --batch-size, which --gradient-accumulation-steps multiplies")
      ->check(above_zero);
  command
      .add_option(spellings("--gradient-accumulation-steps"), flags.accumulation,
                  "multiplies the batch size")
      ->check(above_zero)
      ->capture_default_str();
}

void add_saving_flags(CLI::App& command, TrainingFlags& flags) {
  TrainOptions& o = flags.options;
  command
      .add_option(
          "--freeze", o.freeze,
          "not trained: embeddings, layers.0-5, all-but-head, names or patterns, comma-separated")
      ->delimiter(',');
  command
      .add_option(spellings("--keep-frozen"), o.keep_frozen,
                  "compute frozen layers in front once and keep what they give in a file: auto "
                  "(where they have no dropout), on (turns it off in them), off")
      ->capture_default_str();
  command
      .add_option(spellings("--lora-rank,--lora-r"), o.lora_rank,
                  "train adapters of this rank and the head alone; 0: no adapters")
      ->capture_default_str();
  flags.of_adapters = {
      command.add_option(spellings("--lora-alpha"), o.lora_alpha, "adapters count alpha / rank")
          ->capture_default_str(),
      command.add_option(spellings("--lora-dropout"), o.lora_dropout, "of what goes into adapters")
          ->capture_default_str()};
  command
      .add_option(spellings("--lora-target-modules"), o.lora_target_modules,
                  "layers with adapters: query,value,dense, c_attn, ..., all-linear [query,value; "
                  "gpt2: c_attn]")
      ->delimiter(',');
  command
      .add_option("--quantize", o.quantize,
                  "int8: keep matrices that are not trained, the teacher's too, in a byte a weight")
      ->check(CLI::IsMember({"int8"}));
  command
      .add_option("--recompute", o.recompute,
                  "auto, none, all, a number of layers, or parts of every layer: "
                  "norms,activations,mlp,attention,sums")
      ->capture_default_str();
  command
      .add_option(spellings("--micro-batch-tokens"), o.micro_batch_tokens,
                  "pin the micro-batch; 0: planned")
      ->capture_default_str();
  command
      .add_option("--offload", o.offload,
                  "what lies outside of the device (on the CPU: in a file): auto, none, or "
                  "state,gradients,activations (of recomputed layers)")
      ->capture_default_str();
  command.add_option_function<std::string>(
      spellings("--host-memory"),
      [&o](const std::string& text) { o.host_memory_bytes = parse_size(text); },
      "beside a GPU: most that the process may occupy on the host [what the machine can give]");
  command.add_flag(
      "--calibrate", o.calibrate,
      "time a small model of this width first (once; kept in --cache-dir), to predict speed");
}

void add_distillation_flags(CLI::App& command, TrainOptions& o) {
  command.add_option(spellings("--teacher,--teacher-name-or-path"), o.teacher,
                     "a trained model with the same tokenizer, to learn from beside the labels");
  command.add_option(spellings("--distill-temperature"), o.distill_temperature,
                     "with --teacher: softens both models' probabilities [2]");
  command.add_option(spellings("--distill-alpha"), o.distill_alpha,
                     "with --teacher: its share of the loss, 0 to 1 [0.5]");
}

void add_optimizer_flags(CLI::App& command, TrainOptions& o) {
  command
      .add_option("--optim", o.optim, "adamw, adamw_8bit, adamw_bf16 (weights too), adafactor, sgd")
      ->capture_default_str();
  command.add_option(spellings("--learning-rate"), o.learning_rate, "peak learning rate")
      ->capture_default_str();
  command
      .add_option(spellings("--weight-decay"), o.weight_decay,
                  "decay of weights, not on biases and norms")
      ->capture_default_str();
  command.add_option("--momentum", o.momentum, "of sgd; 0: none, which keeps no optimizer state")
      ->capture_default_str();
  command.add_option(spellings("--adam-beta1"), o.adam_beta1, "decay of the first moment")
      ->capture_default_str();
  command.add_option(spellings("--adam-beta2"), o.adam_beta2, "decay of the second moment")
      ->capture_default_str();
  command
      .add_option(spellings("--adam-epsilon"), o.adam_epsilon,
                  "added to the root of the second moment")
      ->capture_default_str();
  command
      .add_option(spellings("--max-grad-norm"), o.max_grad_norm,
                  "clip gradients to this norm; 0: never")
      ->capture_default_str();
  command.add_option(spellings("--num-train-epochs"), o.num_train_epochs, "passes over the data")
      ->capture_default_str();
  command
      .add_option(spellings("--max-steps"), o.max_steps,
                  "stop after so many steps instead; 0: by epochs")
      ->capture_default_str();
  command
      .add_option(spellings("--lr-scheduler-type"), o.lr_scheduler_type,
                  "linear, cosine, constant, constant_with_warmup")
      ->capture_default_str();
  command
      .add_option(spellings("--warmup-steps"), o.warmup_steps, "steps until the peak learning rate")
      ->capture_default_str();
  command
      .add_option(spellings("--warmup-ratio"), o.warmup_ratio, "the same as a share of all steps")
      ->capture_default_str();
  command.add_option("--dropout", o.dropout, "instead of the rates in config.json");
  command.add_option("--seed", o.seed, "of data order, dropout and new weights")
      ->capture_default_str();
}

void add_evaluation_flags(CLI::App& command, TrainOptions& o) {
  command.add_option(spellings("--eval-strategy,--evaluation-strategy"), o.eval_strategy,
                     "no, steps, epoch [epoch with --validation, else no]");
  command.add_option(spellings("--eval-steps"), o.eval_steps, "with --eval-strategy steps")
      ->capture_default_str();
  command
      .add_option(spellings("--save-strategy"), o.save_strategy, "checkpoints: no, steps, epoch")
      ->capture_default_str();
  command.add_option(spellings("--save-steps"), o.save_steps, "with --save-strategy steps")
      ->capture_default_str();
  command.add_option(spellings("--save-total-limit"), o.save_total_limit, "checkpoints to keep")
      ->capture_default_str();
  command.add_flag(spellings("--load-best-model-at-end"), o.load_best_model_at_end,
                   "write the best model, not the last");
  command
      .add_option(spellings("--metric-for-best-model"), o.metric_for_best_model,
                  "loss, perplexity, or another that evaluation gives: accuracy, f1, f1_macro, "
                  "matthews_correlation, roc_auc, ...")
      ->capture_default_str();
  command.add_option(spellings("--greater-is-better"), o.greater_is_better,
                     "[false for loss, true for the rest]");
  command
      .add_option(spellings("--early-stopping-patience"), o.early_stopping_patience,
                  "stop after so many evaluations without improvement; 0: never")
      ->capture_default_str();
  command
      .add_option(spellings("--logging-steps"), o.logging_steps,
                  "a line every so many steps; 0: a progress line")
      ->capture_default_str();
}

// Accepted so that commands for Hugging Face's example scripts work as they are: what they ask for
// is the default here, or has another name.
void add_accepted_flags(CLI::App& command, TrainingFlags& flags) {
  for (const char* name : {"--do-train", "--do-eval", "--line-by-line"}) {
    command.add_flag(spellings(name), flags.ignored)->group("");
  }
  command
      .add_flag_callback(spellings("--gradient-checkpointing"),
                         [&flags] { flags.options.recompute = "all"; })
      ->group("");
}

void add_all(CLI::App& command, TrainingFlags& flags) {
  begin_group(command, "Model and data");
  add_model_flag(command, flags.options);
  add_data_flags(command, flags);
  begin_group(command, "Memory and device");
  add_memory_flags(command, flags.options);
  begin_group(command, "Spending less (recomputation and offload are planned unasked)");
  add_saving_flags(command, flags);
  begin_group(command, "Training");
  add_batch_flags(command, flags);
  add_optimizer_flags(command, flags.options);
  begin_group(command, "Learning from another model");
  add_distillation_flags(command, flags.options);
  begin_group(command, "Evaluation and checkpoints");
  add_evaluation_flags(command, flags.options);
  add_accepted_flags(command, flags);
  begin_group(command, "Output");
  command.add_flag("--json", flags.json, "one JSON object on standard output");
}

void run_plan(const TrainingFlags& flags) {
  const PlanSummary summary = plan(flags.resolved());
  std::puts((flags.json ? summary.to_json() : summary.to_text()).c_str());
  if (!summary.fits) set_exit_code(int(ErrorKind::kBudget));
}

void run_train(const TrainingFlags& flags) {
  TrainSummary summary;
  try {
    summary = train(flags.resolved());
  } catch (const DoesNotFit& refusal) {
    if (flags.json) std::puts(refusal.plan().to_json().c_str());
    throw;
  }
  if (flags.json) {
    std::puts(summary.to_json().c_str());
    return;
  }
  std::puts(fmt::format("{} steps, mean loss {:.4f}, {:.0f} tokens/s ({:.1f} examples/s)\n"
                        "peak memory: predicted {}, measured {}\nmodel written to {}",
                        summary.steps, summary.train_loss, summary.tokens_per_second,
                        summary.examples_per_second, format_bytes(summary.plan.peak_bytes),
                        format_bytes(summary.measured_peak_bytes), flags.options.output_dir)
                .c_str());
}

}  // namespace

void add_training_commands(CLI::App& app) {
  const auto plan_flags = std::make_shared<TrainingFlags>();
  CLI::App* plan_command =
      app.add_subcommand("plan", "say what a run would occupy, without running it");
  add_all(*plan_command, *plan_flags);
  plan_command->add_option(spellings("--output-dir"), plan_flags->options.output_dir)->group("");
  plan_command->add_option(
      spellings("--device-profile"), plan_flags->options.device_profile,
      "plan for a GPU that is not here: t4, rtx3060-12gb, a100-40gb, ..., or a JSON file");
  plan_command->add_flag("--sweep", plan_flags->options.sweep,
                         "also the best plans for other budgets, as a table and a chart");
  plan_command->callback([plan_flags] { run_plan(*plan_flags); });

  const auto flags = std::make_shared<TrainingFlags>();
  CLI::App* command = app.add_subcommand("train", "fine-tune a model inside the stated memory");
  add_all(*command, *flags);
  TrainOptions& o = flags->options;
  command
      ->add_option(spellings("--output-dir"), o.output_dir,
                   "where the trained model and checkpoints go")
      ->required();
  command->add_option(spellings("--resume-from-checkpoint"), o.resume_from_checkpoint,
                      "latest, or a checkpoint's folder");
  command->add_flag(spellings("--overwrite-output-dir"), o.overwrite_output_dir,
                    "start anew over an earlier run");
  command->callback([flags] { run_train(*flags); });
}

}  // namespace snug
