#include "train/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "model/weight_files.h"
#include "plan/plan_summary.h"

namespace snug {

Session::Session(const CommonOptions& options, Head head)
    : options_(options),
      platform_(open_platform(options)),
      folder_(open_model_folder(options.model)) {
  if ((head == Head::kClassifier || head == Head::kTagger) && folder_.config.labels.empty()) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: has no classes (config.json names no labels)", options.model),
                "train it first with snug train; snug embed works without");
  }
  model_ = make_model(folder_.config, head);
  check_weights(WeightFolder(options.model), *model_, {});
  platform_->warm_up();
}

PlanRequest Session::request(const GraphOptions& graph, const Workload& workload,
                             std::function<uint64_t(const Dims&)> buffers) {
  PlanRequest request;
  request.model = model_.get();
  request.graph = graph;
  request.graph.compute = platform_->compute_type(options_.precision);
  request.workload = workload;
  request.process.buffer_bytes = std::move(buffers);
  request.budget_bytes = platform_->budget(options_.memory_bytes);
  platform_->complete(request);
  return request;
}

void Session::start(Plan plan) {
  plan_ = std::move(plan);
  if (!plan_.fits) {
    throw Error(ErrorKind::kBudget, summarize(plan_, platform_->name()).to_text(),
                fmt::format("the least that works is --memory {}", plan_.minimum_budget_bytes));
  }
  engine_ = platform_->make_engine(*model_, plan_, /*seed=*/0);
  const LoadReport report = load_weights(WeightFolder(options_.model), *model_,
                                         [this](size_t i) { return engine_->weight(i); }, {});
  engine_->weights_changed();
  if (!report.made_new.empty()) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: has no {}", options_.model, fmt::join(report.made_new, ", ")),
                "this model has not been trained for that: snug train does it");
  }
}

}  // namespace snug
