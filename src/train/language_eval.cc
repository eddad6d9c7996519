#include "train/language_eval.h"

#include <cmath>

#include "core/error.h"
#include "core/progress.h"
#include "data/data_files.h"
#include "train/session.h"
#include "train/training_data.h"

namespace snug {
namespace {

constexpr uint64_t kBatch = 8;  // examples read at a time
constexpr double kMaskedShare = 0.15;

}  // namespace

std::map<std::string, double> evaluate_language(const EvalOptions& options, Task task) {
  Session session(options, head_of(task));
  Dataset data =
      Dataset::open(find_data_files("--data", options.data).files, *session.folder().tokenizer,
                    text_dataset_options(options, task, session.folder()));
  if (options.max_eval_samples > 0) data = data.first_texts(uint64_t(options.max_eval_samples));

  BatchOptions batches;
  batches.batch_size = kBatch;
  batches.shuffle = false;
  batches.token_task = token_task(task);
  batches.last_step = steps_per_epoch(data.rows(), kBatch);
  if (task == Task::kMlm) {
    batches.masks = std::make_shared<MaskTable>(*session.folder().tokenizer, kMaskedShare, false);
  }
  Workload workload{.batch_size = int64_t(std::min(kBatch, data.rows())),
                    .longest = data.longest(),
                    .step_tokens = int64_t(std::min(kBatch, data.rows()) * data.longest()),
                    .sequences_per_example = data.most_sequences(),
                    .target_rule = target_rule(task),
                    .masked_share = kMaskedShare};
  const auto buffers = [&](const Dims& capacity) {
    BatchOptions sized = batches;
    sized.capacity_tokens = capacity.tokens;
    return uint64_t(BatchStream::buffer_bytes(data, sized));
  };
  session.start(make_plan(session.request({.purpose = Purpose::kScoring}, workload, buffers)));

  batches.capacity_tokens = session.plan().capacity.tokens;
  BatchStream stream(data, batches);
  Progress progress("evaluating " + options.data, data.rows(), "examples");
  uint64_t examples = 0, targets = 0;
  for (const StepBatch* batch = nullptr; stream.next(batch);) {
    for (const MicroBatch& micro : batch->micro_batches) session.engine().score(micro.view());
    progress.update(examples += batch->examples);
    targets += batch->targets;
  }
  if (targets == 0) fail(ErrorKind::kInput, "{}: has nothing to predict", options.data);
  const double loss = session.engine().take_loss() / double(targets);
  return {{"loss", loss},
          {"perplexity", std::exp(loss)},
          {"examples", double(examples)},
          {"predicted_tokens", double(targets)}};
}

}  // namespace snug
