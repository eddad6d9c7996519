// What a plan for a GPU counts besides tensors, as figures that need no GPU: planning for a card that is not here works
// on any machine. The structures are what engine and kernels exchange through the arena (src/cuda/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace snug {

// In device memory, written before each micro-batch.
struct StepState {
  int32_t tokens = 0, sequences = 0, targets = 0;  // really there
  float loss_scale = 1.0f;            // 1 / targets in the whole step, times the fp16 loss scale
};

// A stretch of one trained parameter, at most kUpdateChunk elements. Offsets count elements from the start of a region and
// are multiples of 16.
inline constexpr int32_t kUpdateChunk = 4096;
struct UpdateChunk {
  int64_t offset = 0;            // in weights and gradients, which are laid out alike
  int64_t first = 0, second = 0;  // moments, in the optimizer's state
  int64_t copy_offset = -1;      // in the compute-type copies; -1: none
  int32_t count = 0;
  int16_t decays = 0;          // whether weight decay applies
  int16_t keeps_gradient = 0;  // the next step writes it without looking: it is not set to zero
};

// What changes from step to step; uploaded before each update. adamw.h has the formulas.
struct UpdateFactors {
  float keep = 1.0f;  // 1 - lr * weight_decay
  float step_size = 0.0f, new_m = 0.1f, old_v = 0.999f, new_v = 0.001f, v_correction = 1.0f, epsilon = 1e-8f;
  float max_norm = 0.0f;        // 0: no clipping
  float gradient_scale = 1.0f;  // divides out the fp16 loss scale before norm and update
};

// What an update leaves for the host.
struct UpdateResult {
  double loss = 0;           // as accumulated; the update sets the accumulator back to zero
  double gradient_norm = 0;  // before clipping, after gradient_scale
  int32_t applied = 0;       // 0: loss or norm was not finite, so no weight and no moment changed
  float clip = 1.0f;         // what clipping multiplied the gradient with
};
inline constexpr int kNormPartials = 1024;

// Offsets inside the arena's tables.
struct DeviceTables {
  // The micro-batch, uploaded in one piece: [state, end_of_batch).
  size_t state = 0, ids = 0, positions = 0, type_ids = 0, row_of = 0, by_id = 0, starts = 0, labels = 0, samples = 0;
  size_t target_rows = 0, target_ids = 0;
  size_t end_of_batch = 0;
  // The update; nothing of it in inference.
  size_t chunks = 0, factors = 0, result = 0, partials = 0;
  size_t chunk_count = 0;
  size_t bytes = 0;
};
DeviceTables device_tables(const Dims& capacity, const ParameterTable& parameters, bool training);

// Micro-batches of up to `capacity` tokens are padded to one of these, in ascending order; a CUDA graph is captured for
// each. Generation has two: one more token of every text, and prompts. Where texts are all about as long as the longest, as
// blocks of a language model are, there is one for every number of them.
std::vector<int64_t> bucket_sizes(int64_t capacity);
std::vector<int64_t> bucket_sizes(const Workload& workload, int64_t capacity);

// The driver gives memory in pieces of this size.
inline constexpr size_t kGpuGranule = size_t{2} << 20;

// A card by name or from a file, for plans without it.
struct GpuProfile {
  std::string name;
  uint64_t memory_bytes = 0;
  uint64_t overhead_bytes = 0;  // context and libraries
  bool has_bf16 = true;
};
// A built-in name, or a JSON file: {"name", "memory_bytes", "overhead_bytes", "bf16"}.
GpuProfile find_gpu_profile(const std::string& name_or_file);

// Fills in what a GPU adds to a request whose model, purpose and compute type are set.
void complete_for_gpu(PlanRequest& request, uint64_t overhead_bytes);

}  // namespace snug
