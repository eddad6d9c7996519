// A device beside the engine: what planning must know about it before anything is taken, and the
// engine it makes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/planner.h"
#include "runtime/engine.h"

namespace snug {

class Platform {
 public:
  virtual ~Platform() = default;

  virtual std::string name() const = 0;  // "cpu", "cuda:0"
  // What `snug doctor` shows: a name and a value each.
  virtual std::vector<std::pair<std::string, std::string>> facts() const = 0;
  // What --precision means here: "auto", "fp32", "bf16" or "fp16". Errors say what this device can
  // do.
  virtual DType compute_type(const std::string& precision) const = 0;
  // The budget that applies: what was asked for, never more than the device can give.
  virtual uint64_t budget(const std::optional<uint64_t>& asked_bytes) const = 0;
  // Runs what makes libraries take memory of their own. Call before data is read.
  virtual void warm_up() = 0;
  // Fills in the device and the facts about this process, from the request's model and workload.
  // Call after warm_up().
  virtual void complete(PlanRequest& request) = 0;
  // Null where the device is only described, not here. `compute` is the plan's.
  virtual std::unique_ptr<Engine> make_engine(const Model& model, const Plan& plan,
                                              uint64_t seed) = 0;
  virtual uint64_t peak_bytes() const = 0;  // of this process on the device, so far
};

}  // namespace snug
