// A training run before it takes memory: model folder, data, labels and schedule, checked; and its
// plan. `snug plan` ends here, `snug train` goes on with exactly this.
#pragma once

#include <memory>
#include <optional>

#include "data/batches.h"
#include "data/dataset.h"
#include "ops/distillation.h"
#include "optim/schedule.h"
#include "plan/planner.h"
#include "snug/snug.h"
#include "train/kept_states.h"
#include "train/model_folder.h"
#include "train/platform.h"
#include "train/task.h"
#include "train/task_evaluation.h"
#include "train/teacher.h"

namespace snug {

struct TrainingJob {
  TrainOptions options;
  std::unique_ptr<Platform> platform;
  ModelFolder folder;  // its config carries the labels of this run
  std::unique_ptr<Dataset> train, validation;
  Task task = Task::kClassify;
  std::shared_ptr<const MaskTable> masks;  // of masked language modelling
  std::optional<Teacher> teacher;
  Distillation distillation;     // where there is one
  std::unique_ptr<Model> model;  // with a teacher, both
  LoadOptions load;
  std::vector<float> class_weights;  // by class; empty: all weigh the same
  Schedule schedule;
  double data_seconds = 0;  // until the data was open
  uint64_t steps_per_epoch = 0, total_steps = 0;
  uint64_t eval_every = 0, save_every = 0;  // steps; 0: never
  std::optional<KeptStates::Size> keeping;  // of what frozen layers give; empty: it is not kept
  Plan plan;
  PlanSummary summary;

  BatchOptions train_batches(uint64_t first_step) const;
  BatchOptions filling_batches() const;  // of train->unmixed(), to keep what frozen layers give
  // Of a language model: one pass after another, without end.
  BatchOptions validation_batches() const;
  LossOptions loss() const {
    return {.label_smoothing = float(options.label_smoothing), .weighted = !class_weights.empty()};
  }
  // Of validation texts; not for language models.
  FileEvaluation::Setup evaluation() const;
};

// A plan to keep if it still fits: the one a checkpoint was trained with.
struct PreferredPlan {
  int64_t capacity_tokens = 0;
  PlanChoice choice;
  int kept_layers = 0;
};

// The model and the request of this job under other options: what would the plan be with them?
std::unique_ptr<Model> build_model(const TrainingJob& job, const TrainOptions& options);
PlanRequest plan_request(const TrainingJob& job, const TrainOptions& options, const Model& model);

// A run that has no room in its memory, with the plan that says so.
class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(const PlanSummary& plan);
  const PlanSummary& plan() const { return plan_; }

 private:
  PlanSummary plan_;
};

TrainingJob prepare_training(const TrainOptions& options,
                             const std::optional<PreferredPlan>& preferred);

}  // namespace snug
