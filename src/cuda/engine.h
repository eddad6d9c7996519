// The engine on a GPU. Micro-batches fall into a few buckets by their number of tokens; the step
// graph is captured once for each bucket as a CUDA graph and replayed, so a step costs the host a
// handful of calls. Nothing waits for the device but finish(), score() and the files.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "cuda/copy_stream.h"
#include "cuda/gpu.h"
#include "cuda/graph_counters.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/pending_sums.h"
#include "cuda/products.h"
#include "cuda/update.h"
#include "runtime/converted_weights.h"
#include "runtime/engine.h"
#include "runtime/executor.h"

namespace snug::cuda {

class CudaEngine : public Engine {
 public:
  // gpu and products must outlive the engine.
  CudaEngine(const Model& model, const Plan& plan, uint64_t seed, const Gpu& gpu,
             Products& products);
  ~CudaEngine() override;

  void begin(double targets) override;
  void accumulate(const Batch& micro_batch) override;
  void update(const OptimizerStep& step, double max_gradient_norm) override;
  int updates_ahead() const override { return scales_loss() ? 0 : 1; }
  StepResult finish() override;
  std::span<const std::byte> run_prefix(const Batch& micro_batch) override;
  std::span<std::byte> given_states(const Dims& dims) override;
  void score(const Batch& micro_batch) override;
  double take_loss() override;
  std::span<const float> result() override;
  void weights_changed() override;
  LossScale loss_scale() const override { return loss_scale_; }
  void set_loss_scale(const LossScale& scale) override { loss_scale_ = scale; }
  uint64_t arena_bytes() const override { return arena_.bytes(); }

 private:
  struct Captured {
    int64_t tokens = 0;
    cudaGraphExec_t graph = nullptr;
  };
  struct Program {  // one step graph, captured for every bucket
    const StepGraph* source = nullptr;
    std::unique_ptr<Executor> executor;
    std::vector<Captured> buckets;
  };
  struct UploadSlot {
    PinnedBuffer
        buffer;  // the micro-batch as tables_ has it, and behind it what kept layers gave for it
    cudaEvent_t done = nullptr;
  };
  struct UpdateSlot {
    PinnedBuffer buffer;  // UpdateFactors going up, UpdateResult coming down
    cudaEvent_t done = nullptr;
  };

  Memory& inside() override { return arena_; }
  Memory& outside() override { return outside_; }
  ConvertedWeights& converted() override { return converted_; }
  bool scales_loss() const { return plan_.compute == DType::kF16; }
  template <class T>
  T* table(size_t offset) const {
    return reinterpret_cast<T*>(arena_.base() + plan_.layout.tables.offset + offset);
  }
  void make_slots();
  void fill_chunks();
  void capture(Program& program, const StepGraph& graph, const MemoryPlan& memory, bool training);
  void launch_nodes(Program& program, const Dims& dims, const StepContext& context);
  TensorDesc states_desc() const { return plan_.prefix->graph.value(plan_.prefix->result).desc; }
  std::byte* states_in(const UploadSlot& slot) const {
    return slot.buffer.data() + align_up(tables_.end_of_batch);
  }
  void upload(const Program& program, const Batch& batch, float loss_scale);
  void upload_states(const Program& program, const UploadSlot& slot, const Dims& dims);
  void replay(const Program& program, const Batch& batch, float loss_scale);
  UpdateArguments update_arguments() const;

  const Gpu& gpu_;
  Products& products_;
  uint64_t seed_;
  DeviceArena arena_;
  DeviceTables tables_;
  GraphCounters counters_;  // of all graphs
  PendingSums pending_;
  PinnedMemory outside_;
  CopyStream copies_;
  ConvertedWeights converted_;  // weights that exist in a half type alone
  Batch device_batch_;          // arrays in the arena
  Program step_, scoring_, prefix_;
  const Program* last_ = nullptr;  // which of them ran
  Dims last_dims_;                 // of what ran
  std::vector<UploadSlot> uploads_;
  size_t next_upload_ = 0;
  std::vector<UpdateSlot> updates_;
  size_t next_update_ = 0;
  std::vector<UpdateTensor> update_tensors_;
  std::deque<size_t> running_;  // slots of updates whose results are still to come
  std::vector<uint64_t> sort_keys_;
  std::vector<float> result_;
  bool fresh_state_ = true;    // the optimizer's state was written since the last update
  int passes_ = 0;             // micro-batches of the step so far
  float target_share_ = 1.0f;  // 1 / targets of the step
  LossScale loss_scale_;
};

}  // namespace snug::cuda
