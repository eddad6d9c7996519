// The engine on the CPU: the arena is resident memory of this process, kernels run on its threads.
#pragma once

#include "core/process_memory.h"
#include "runtime/arena.h"
#include "runtime/engine.h"
#include "runtime/executor.h"
#include "runtime/outside_file.h"

namespace snug {

class CpuEngine : public Engine {
 public:
  // What the plan keeps outside lies in a file in `scratch`.
  CpuEngine(const Model& model, const Plan& plan, uint64_t seed,
            const std::filesystem::path& scratch = {});

  void begin(double targets) override;
  void accumulate(const Batch& micro_batch) override;
  void update(const OptimizerStep& step, double max_gradient_norm) override;
  StepResult finish() override { return result_; }
  std::span<const std::byte> run_prefix(const Batch& micro_batch) override;
  std::span<std::byte> given_states(const Dims& dims) override;
  void score(const Batch& micro_batch) override;
  double take_loss() override;
  std::span<const float> result() override;
  void weights_changed() override { trim_allocator(); }  // of what reading files has left
  uint64_t arena_bytes() const override { return arena_.resident_bytes(); }

 private:
  Memory& inside() override { return arena_; }
  Memory& outside() override { return outside_; }
  ConvertedWeights& converted() override { return halves_; }
  std::span<float> floats(size_t offset, size_t bytes) const;

  uint64_t seed_;
  Arena arena_;
  OutsideFile outside_;
  ConvertedWeights halves_;
  Executor step_;                      // the plan's purpose
  std::unique_ptr<Executor> scoring_;  // evaluation during training
  std::unique_ptr<Executor> prefix_;   // of the layers whose output is kept
  Executor* last_ = nullptr;           // which of them ran
  StepContext context_;
  StepResult result_;
};

}  // namespace snug
