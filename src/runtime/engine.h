// One planned model on one device. Everything above (training loop, evaluation, prediction,
// checkpoints) speaks to this interface; the CPU's implementation is beside it, CUDA's in
// src/cuda/. An engine takes all its memory when it is made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "core/memory.h"
#include "graph/op.h"
#include "optim/optimizer.h"
#include "plan/planner.h"
#include "runtime/converted_weights.h"
#include "runtime/split_weights.h"

namespace snug {

struct StepResult {
  double loss = 0;           // mean over the step's examples
  double gradient_norm = 0;  // before clipping
  bool applied = false;      // false: loss or gradient was not finite, and no weight changed
  bool skipped = false;  // not applied because the fp16 loss scale was too high; it is lower now
};

// fp16's smallest numbers are too large for gradients, so the loss is scaled up while that does not
// overflow.
struct LossScale {
  double scale = 65536;
  int64_t clean_steps = 0;   // since the scale last changed
  int64_t failed_steps = 0;  // in a row

  void after_step(bool applied);
  // No scale will help: the numbers themselves are broken.
  bool hopeless() const { return failed_steps > 20 || scale < 1e-4; }
};

// What training changes, each in one piece: weights and gradients in fp32, weights that exist in
// bf16 alone, and the optimizer's state.
enum class Region : uint8_t { kWeights, kHalves, kGradients, kState };
class Engine {
 public:
  // Both must outlive the engine.
  Engine(const Model& model, const Plan& plan) : model_(model), plan_(plan) {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // One optimizer step: begin, accumulate each micro-batch, update. `targets` of the whole step
  // (examples, or tokens to be predicted; of weighted examples the sum of their weights):
  // micro-batches add up to their mean. The update clips to `max_gradient_norm` (0: never);
  // `step.weight_decay` counts where the parameter table says so. Batches may be reused as soon as
  // accumulate() returns.
  virtual void begin(double targets) = 0;
  virtual void accumulate(const Batch& micro_batch) = 0;
  virtual void update(const OptimizerStep& step, double max_gradient_norm) = 0;
  // Results of updates, oldest first, each once. A device computes on its own: so many updates may
  // wait for finish() while the next step is already begun.
  virtual int updates_ahead() const { return 0; }
  virtual StepResult finish() = 0;

  // Where the plan keeps the output of the first layers: that output for a micro-batch, valid until
  // the next call; and the place where it is to be written before accumulate() of a micro-batch of
  // these sizes.
  virtual std::span<const std::byte> run_prefix(const Batch& micro_batch) = 0;
  virtual std::span<std::byte> given_states(const Dims& dims) = 0;

  // Forward only: the plan's scoring graph, or its only graph.
  virtual void score(const Batch& micro_batch) = 0;
  virtual double take_loss() = 0;  // sum over the targets scored since the last call
  // Of the last accumulate() or score(): [sequences, columns] logits, embeddings or next tokens;
  // not for a graph that has no result.
  virtual std::span<const float> result() = 0;
  int64_t result_columns() const { return plan_.step->graph.value(plan_.step->result).desc.cols; }

  // In the order of the parameter table, whatever the plan; the block lives as long as the engine.
  Block region(Region region);
  // One parameter in fp32, trained or not; an int8 one with its scales.
  Block weight(size_t parameter);
  Block gradient(size_t parameter);
  // After weights, or the optimizer's state, were written from outside.
  virtual void weights_changed() {}
  virtual LossScale loss_scale() const { return {}; }
  virtual void set_loss_scale(const LossScale&) {}

  virtual uint64_t arena_bytes() const = 0;  // occupied, as the system counts it

 protected:
  // The arena; what lies outside of it; and numbers of 16 bits in the arena seen as fp32.
  virtual Memory& inside() = 0;
  virtual Memory& outside() = 0;
  virtual ConvertedWeights& converted() = 0;

  size_t fp32_bytes(size_t parameter) const {
    return size_t(model_.parameters()[parameter].size()) * sizeof(float);
  }

  const Model& model_;
  const Plan& plan_;

 private:
  Block placed(size_t inside_offset, size_t outside_offset, size_t bytes);
  // The fp32 numbers of a weight or its gradient, so many bytes of them.
  Block exact_weight(size_t parameter, size_t bytes);
  Block exact_gradient(size_t parameter, size_t bytes);

  std::map<Region, ScatteredMemory> regions_;
  // By parameter.
  std::map<size_t, SplitWeights> splits_;
  std::map<size_t, ConvertedWeights> rounded_;  // gradients
};

}  // namespace snug
