// snug as a library: what the command line does, as functions. Options carry the same names and
// defaults as the flags. Every function throws snug::Error (see kind and what()) and prints nothing
// on standard output.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "snug/error.h"
#include "snug/evaluation.h"

namespace snug {

// Flags that every command with a model shares.
struct CommonOptions {
  std::string model;  // a Hugging Face folder
  std::optional<uint64_t>
      memory_bytes;  // the budget of the whole process; empty: what this machine can give
  std::string device = "auto";     // cpu, cuda, cuda:N; auto: a GPU where this snug can use one
  std::string device_profile;      // plan for a card that is not here: its name or a file
  std::string precision = "auto";  // auto, fp32, bf16, fp16
  bool tf32 = false;               // products of fp32 numbers may round their factors to TF32
  int threads = 0;                 // 0: all processors this process may use
  int64_t max_length = 0;          // tokens a text; 0: what the model has positions for
  std::string text_column, text_pair_column, label_column;  // empty: by the usual names
  bool header = true;      // the first line of CSV and TSV files names the columns
  std::string long_texts;  // what is kept of longer ones: head, tail, middle (both ends), windows;
                           // empty: head, and windows of tag and qa
  std::optional<int64_t>
      stride;  // tokens that a window shares with the one before; empty: a third of max_length
  char label_separator = ',';  // multi-label: between the labels of a text
  // Leave rows that are wrong out, and count them, instead of refusing the file.
  bool skip_bad_rows = false;
  std::string cache_dir;  // tokenized data; empty: $XDG_CACHE_HOME/snug or ~/.cache/snug
};

struct TrainOptions : CommonOptions {
  std::string task;  // classify, multi-label, regress, tag, qa, clm, mlm; empty: from the model and
                     // the data
  double label_smoothing = 0;  // classify, tag: the share of the loss that all classes have part in
  std::string class_weights;   // classify, tag: balanced, or a weight for each class; empty: all
                               // weigh the same
  // Language modelling.
  int64_t block_size = 0;  // clm: tokens a block; 0: what the model has positions for
  bool concat = true;      // clm: documents end to end in blocks; false: each is an example
  bool attention_across_documents = false;  // clm: a block is one text, whatever it holds
  double mlm_probability = 0.15;
  bool whole_word_mask = false;  // mlm: all tokens of a word, or none
  // Distillation.
  std::string teacher;  // a model folder to learn from beside the labels; empty: none
  std::optional<double>
      distill_temperature;              // of both softmaxes, where there is a teacher; empty: 2
  std::optional<double> distill_alpha;  // the teacher's share of the loss, 0 to 1; empty: 0.5
  // Files, or patterns with * and ?, separated by commas; those to train on with weights, if
  // wanted: "a.csv:0.7,b-*.csv:0.3".
  std::string train, validation;
  // Where no validation file is given, this share of the training data: of language models the last
  // blocks, else texts chosen by the seed. Empty: 5 for language models, otherwise none.
  std::optional<double> validation_split_percentage;
  // The first texts of the files alone; 0: all.
  int64_t max_train_samples = 0, max_eval_samples = 0;
  std::string output_dir;
  int64_t batch_size = 8;  // examples per step, however many micro-batches that takes
  double learning_rate = 5e-5, weight_decay = 0, adam_beta1 = 0.9, adam_beta2 = 0.999,
         adam_epsilon = 1e-8;
  std::string optim = "adamw";  // adamw, adamw_8bit, adamw_bf16, adafactor, sgd
  double momentum = 0.9;        // of sgd; 0: none, and no optimizer state
  double max_grad_norm = 1.0;
  double num_train_epochs = 3;
  int64_t max_steps = 0;  // 0: by epochs
  std::string lr_scheduler_type = "linear";
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  std::optional<double> dropout;  // instead of the three rates in config.json
  uint64_t seed = 42;
  std::string eval_strategy;  // no, steps, epoch; empty: epoch where there is validation data
  int64_t eval_steps = 500;
  std::string save_strategy = "steps";  // no, steps, epoch
  int64_t save_steps = 500;
  int64_t save_total_limit = 2;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "loss";
  std::optional<bool> greater_is_better;  // empty: false for loss, true for the rest
  int64_t early_stopping_patience = 0;    // 0: off
  // A line on standard error every so many steps; 0: a progress line only.
  int64_t logging_steps = 0;
  std::vector<std::string>
      freeze;  // what is not trained: embeddings, layers.0-5, all-but-head, names, patterns
  // Whether the output of frozen layers in front of all that is trained is computed once and kept
  // in a file: auto (where they have no dropout, so that results stay the same, and it saves time),
  // on (also leaves their dropout out), off.
  std::string keep_frozen = "auto";
  int64_t lora_rank = 0;  // 0: no adapters
  double lora_alpha = 8, lora_dropout = 0;
  std::vector<std::string> lora_target_modules;  // empty: query and value, c_attn of GPT-2
  std::string quantize;                          // int8: matrices that are not trained; empty: none
  std::string recompute = "auto";                // auto, none, all, a number of layers, or parts:
                                                 // norms,activations,mlp,attention,sums
  int64_t micro_batch_tokens = 0;                // 0: the planner chooses
  // Outside of the device: auto, none, or any of state,gradients,activations.
  std::string offload = "auto";
  std::optional<uint64_t>
      host_memory_bytes;   // beside a GPU: most that the process may occupy on the host
  bool calibrate = false;  // time a small model of this width first, unless that was done before
  bool sweep = false;      // plan(): also the best plans for other budgets
  std::string resume_from_checkpoint;  // "latest" or a folder
  bool overwrite_output_dir = false;
  bool ignore_mismatched_sizes = false;
};

struct PlanItem {
  std::string name;
  uint64_t bytes = 0;
};

struct Alternative {
  std::string technique;
  uint64_t saves_bytes = 0, peak_bytes = 0;
};

// The best plan for a budget.
struct SweepPoint {
  uint64_t budget_bytes = 0, peak_bytes = 0;
  int64_t micro_batch_tokens = 0, micro_batches = 0, head_chunk_tokens = 0;
  bool converts_weights = false;
  std::string offload, recompute;
  double relative_time = 1;                 // of a step; 1 is the fastest of the sweep
  std::optional<double> tokens_per_second;  // where calibrated
  bool chosen = false;                      // by the budget that was asked for
};

struct PlanSummary {
  bool fits = false;
  std::string device, precision = "fp32", optimizer = "adamw", recompute, offload = "none";
  uint64_t budget_bytes = 0, peak_bytes = 0, overhead_bytes = 0, arena_bytes = 0,
           host_peak_bytes = 0;
  uint64_t outside_bytes = 0;  // what is offloaded: to the host, or on a CPU run to a file
  int64_t kept_layers = 0;  // frozen ones whose output is computed once and kept in a file; 0: none
  uint64_t kept_bytes = 0;  // of that file
  bool drops_less = false;  // the kept layers' dropout is left out
  std::string
      not_kept;  // why frozen layers' output is not kept, where something can be done about it
  uint64_t minimum_budget_bytes = 0;
  int64_t batch_size = 0, micro_batch_tokens = 0, micro_batches = 0, max_length = 0;
  // Tokens whose logits exist at once; 0 where the head is no language model's.
  int64_t head_chunk_tokens = 0;
  // Weights are converted to the precision of products when used, not kept in it.
  bool converts_weights = false;
  std::vector<PlanItem> items;
  std::optional<double> predicted_tokens_per_second;  // where calibrated
  std::vector<Alternative>
      would_fit_with;  // only where it does not fit: techniques that change results, best first
  std::optional<Alternative>
      smallest_with;  // where none of them fits either: the one that needs least
  std::vector<SweepPoint>
      sweep;  // where asked for: from little memory to much, each faster than the one before

  std::string to_json() const;
  std::string to_text() const;
};

struct StepMetrics {
  uint64_t step = 0;  // counts from 1
  double epoch = 0, loss = 0, learning_rate = 0, grad_norm = 0, seconds = 0;
  uint64_t tokens = 0, examples = 0;
  // Over an epoch, their sum is the same in any order: every row was seen once.
  uint64_t rows_checksum = 0;
};

struct TrainSummary {
  PlanSummary plan;
  uint64_t steps = 0, examples = 0, tokens = 0;
  double train_loss = 0;  // mean over this run's steps
  // Of the steps, waiting for data included.
  double seconds = 0, tokens_per_second = 0, examples_per_second = 0;
  // Before them: reading and tokenizing files, or opening what was kept of an earlier run.
  double data_seconds = 0;
  double keeping_seconds = 0;  // before the first step, where the output of frozen layers is kept
  uint64_t measured_peak_bytes = 0, measured_arena_bytes = 0;
  std::map<std::string, double> eval;  // of the model that was saved; empty without validation data
  bool stopped_early = false;
  std::string teacher;                                // empty: none
  double distill_temperature = 0, distill_alpha = 0;  // where there is a teacher

  std::string to_json() const;
};

PlanSummary plan(const TrainOptions& options);
TrainSummary train(const TrainOptions& options,
                   const std::function<void(const StepMetrics&)>& on_step = {});

struct EvalOptions : CommonOptions {
  std::string data;  // files, as in TrainOptions
  int64_t max_eval_samples = 0;
};
// Metrics are loss, examples, examples_per_second and those of the task (docs/metrics.md); of a
// language model loss, perplexity, predicted_tokens, examples, examples_per_second.
Evaluation evaluate(const EvalOptions& options);

struct InferenceOptions : CommonOptions {
  std::string input;                           // a file, or "-"
  std::optional<std::string> text, text_pair;  // instead of a file
  std::string pooling = "mean";
  bool normalize = true;  // embeddings of length one
  // qa: answers for each question, and tokens in one.
  int64_t n_best_size = 5, max_answer_length = 30;
  bool version_2_with_negative = false;  // qa: there may be no answer
};
// Places in texts count code points, end exclusive.
struct EntityPrediction {
  std::string type{}, text{};
  uint64_t begin = 0, end = 0;
  double score = 0;  // mean probability of its words' tags
};
struct AnswerPrediction {
  std::string text{};
  uint64_t begin = 0, end = 0;  // in the context
  double score = 0;             // among the answers that were found
};
// What a text was found to be; which of it is filled in depends on what the model was trained for.
struct Prediction {
  std::string id{};  // where the input has one
  std::string label{};
  double score = 0;                                      // of the label
  std::vector<std::pair<std::string, double>> scores{};  // of every label, by id
  std::optional<std::vector<std::string>>
      labels{};                   // multi-label: those with a probability above a half
  std::optional<double> value{};  // regress
  std::optional<std::vector<EntityPrediction>> entities{};  // tag
  std::vector<std::pair<std::string, std::string>> tags{};  // tag: words and their labels
  std::optional<std::vector<AnswerPrediction>>
      answers{};               // qa: best first; none: the context has no answer
  double no_answer_score = 0;  // qa: above 0, no answer is more likely than the best one
};
void predict(const InferenceOptions& options,
             const std::function<void(const Prediction&)>& on_prediction);
void embed(const InferenceOptions& options,
           const std::function<void(const std::vector<float>&)>& on_embedding);

struct GenerateOptions : CommonOptions {
  std::vector<std::string> prompts;  // one or more; or
  std::string input;                 // a file of them, or "-"
  // Where these are absent, the model's generation_config.json decides, or else what stands here.
  std::optional<int64_t> max_new_tokens;     // 100
  std::optional<double> temperature;         // 1; 0: always the most likely token
  std::optional<int64_t> top_k;              // 50; 0: all tokens
  std::optional<double> top_p;               // 1
  std::optional<double> repetition_penalty;  // 1
  std::vector<std::string> stop;             // texts that end the writing; they are not part of it
  uint64_t seed = 42;
  int64_t num_return = 1;   // texts for each prompt
  int64_t batch_size = 32;  // texts written at once, memory allowing
  // Go on beyond the model's positions: the older half of the text is then forgotten.
  bool sliding = false;
  bool ignore_eos = false;  // the end-of-text token does not end the writing
};
struct GeneratedText {
  std::string prompt, text;  // what was written, without the prompt
  uint64_t tokens = 0;
  std::string finish_reason;   // eos, stop, length
  double log_probability = 0;  // of all its tokens
};
struct GenerateSummary {
  std::vector<GeneratedText> texts;           // prompt by prompt, num_return of each
  uint64_t tokens = 0;                        // written, all texts together
  double seconds = 0, tokens_per_second = 0;  // of the writing, without loading
  uint64_t predicted_peak_bytes = 0, measured_peak_bytes = 0;

  void write_json(const std::function<void(const std::string& piece)>& write) const;
};
// on_piece is called with the number of a text and what has just been added to it.
GenerateSummary generate(
    const GenerateOptions& options,
    const std::function<void(size_t text, const std::string& piece)>& on_piece = {});

struct MergeOptions {
  std::string model;  // empty: the one the adapter names
  std::string adapter, output_dir;
};
// Adds an adapter to the weights it belongs to: a plain model folder.
void merge_adapter(const MergeOptions& options);

struct QuantizeOptions {
  std::string model, output_dir;
};
struct QuantizeSummary {
  uint64_t original_bytes = 0, bytes = 0;  // of the weights' files
  uint64_t fp32_bytes = 0;                 // as many weights in fp32
};
// Writes a folder whose large matrices are int8, for evaluation, prediction, generation and frozen
// layers.
QuantizeSummary quantize(const QuantizeOptions& options);

struct InitOptions {
  std::string model_type = "bert", train, output_dir;  // bert, roberta, gpt2
  std::string text_column;
  int64_t vocab_size = 8000, hidden_size = 256, num_hidden_layers = 4, num_attention_heads = 4;
  int64_t intermediate_size = 0;  // 0: four times hidden_size
  int64_t max_position_embeddings = 512;
  bool lowercase = true, header = true;
  uint64_t seed = 42;
};
void init_model(const InitOptions& options);

}  // namespace snug
