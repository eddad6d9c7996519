// A model that has been planned and loaded for anything but training: prediction, evaluation,
// embedding, generation.
#pragma once

#include <memory>

#include "plan/planner.h"
#include "runtime/engine.h"
#include "snug/snug.h"
#include "train/model_folder.h"
#include "train/platform.h"

namespace snug {

class Session {
 public:
  // Opens platform and folder and checks the weights' headers.
  Session(const CommonOptions& options, Head head);

  const ModelFolder& folder() const { return folder_; }
  const Model& model() const { return *model_; }
  Platform& platform() { return *platform_; }

  // A request for this model and device within the budget; graph, workload and buffers are the
  // caller's.
  PlanRequest request(const GraphOptions& graph, const Workload& workload,
                      std::function<uint64_t(const Dims&)> buffers);
  // Takes the memory and loads the weights. A plan that does not fit is kBudget.
  void start(Plan plan);

  const Plan& plan() const { return plan_; }
  Engine& engine() { return *engine_; }

 private:
  CommonOptions options_;
  std::unique_ptr<Platform> platform_;
  ModelFolder folder_;
  std::unique_ptr<Model> model_;
  Plan plan_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace snug
