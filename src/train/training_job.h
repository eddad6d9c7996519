// A training run before it takes memory: model folder, data, labels and schedule, checked; and its plan. `snug plan` ends
// here, `snug train` goes on with exactly this.
#pragma once

#include <memory>
#include <optional>

#include "data/batches.h"
#include "data/dataset.h"
#include "optim/schedule.h"
#include "plan/planner.h"
#include "snug/snug.h"
#include "train/model_folder.h"
#include "train/platform.h"

namespace snug {

struct TrainingJob {
  TrainOptions options;
  std::unique_ptr<Platform> platform;
  ModelFolder folder;  // its config carries the labels of this run
  std::unique_ptr<Dataset> train, validation;
  std::unique_ptr<Model> model;
  LoadOptions load;
  Schedule schedule;
  uint64_t steps_per_epoch = 0, total_steps = 0;
  uint64_t eval_every = 0, save_every = 0;  // steps; 0: never
  Plan plan;
  PlanSummary summary;

  BatchOptions train_batches(uint64_t first_step) const;
  BatchOptions validation_batches() const;  // one pass after another, without end
};

// A plan choice to keep if it still fits: the one a checkpoint was trained with.
struct PlanChoice {
  int64_t capacity_tokens = 0;
  int recomputed_layers = 0;
};

TrainingJob prepare_training(const TrainOptions& options, const std::optional<PlanChoice>& preferred);

// --max-length, or what the model has positions for.
size_t text_length(const CommonOptions& options, int64_t positions);

}  // namespace snug
