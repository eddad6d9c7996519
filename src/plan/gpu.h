// What a plan for a GPU counts besides tensors, as figures that need no GPU: planning for a card
// that is not here works on any machine. The structures are what engine and kernels exchange
// through the arena (src/cuda/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/planner.h"
#include "plan/update_table.h"

namespace snug {

// In device memory, written before each micro-batch.
struct StepState {
  int32_t tokens = 0, sequences = 0, targets = 0;  // really there
  float loss_scale = 1.0f;     // 1 / targets in the whole step, times the fp16 loss scale
  int32_t earlier_passes = 0;  // micro-batches of the step before this one
};

// What products of one CUDA graph count their pieces in (cuda/graph_counters.h).
inline constexpr size_t kCounterBytes = size_t{256} << 10;

// Offsets inside the arena's tables.
struct DeviceTables {
  // The micro-batch, uploaded in one piece: [state, end_of_batch).
  size_t state = 0, ids = 0, positions = 0, type_ids = 0, row_of = 0, by_id = 0, starts = 0,
         labels = 0, samples = 0;
  size_t target_rows = 0, target_ids = 0;
  size_t end_of_batch = 0;
  size_t counters = 0;  // kCounterBytes
  // Nothing of what follows in inference. The update:
  size_t chunks = 0, factors = 0, result = 0, partials = 0, seen = 0;
  size_t sums = 0, sum_bytes = 0;  // of a micro-batch's gradients, see cuda/pending_sums.h
  size_t chunk_count = 0;
  size_t bytes = 0;
};
DeviceTables device_tables(const Dims& capacity, const ParameterTable& parameters, bool training);

// Micro-batches of up to `capacity` tokens are padded to one of these, in ascending order; a CUDA
// graph is captured for each. Generation has two: one more token of every text, and prompts. Where
// texts are all about as long as the longest, as blocks of a language model are, there is one for
// every number of them.
std::vector<int64_t> bucket_sizes(int64_t capacity);
std::vector<int64_t> bucket_sizes(const Workload& workload, int64_t capacity);

// Micro-batches on their way to the device, in pinned memory of the host: one being read, one being
// written, one waiting.
inline constexpr size_t kUploadSlots = 3;

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
