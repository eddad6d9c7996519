// The stream of packed batches that feeds training and evaluation, read ahead of the computation by
// one background thread. Step s is a pure function of (data, options, s), so a run that starts at
// any step replays nothing; all memory is taken by the constructor and buffer_bytes() says how
// much.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/masking.h"
#include "graph/op.h"

namespace snug {

// What the model learns to predict about single tokens.
enum class TokenTask : uint8_t { kNone, kNextWord, kMaskedWord, kTag };

struct BatchOptions {
  uint64_t seed = 42;
  uint64_t batch_size = 8;      // examples per step
  int64_t capacity_tokens = 0;  // of a micro-batch; no example may be longer
  bool shuffle = true;          // false: in the order of the file, for evaluation
  TokenTask token_task = TokenTask::kNone;
  std::shared_ptr<const MaskTable> masks{};  // of kMaskedWord
  std::vector<float> class_weights{};  // in every label, as ops/cross_entropy.h has them; empty:
                                       // all weigh the same
  int depth = 2;                       // steps ready ahead of the one being used
  uint64_t first_step = 0, last_step = 0;  // [first, last): the stream ends before last_step
};

// Whole sequences end to end; views into the step's buffers.
struct MicroBatch {
  std::span<const int32_t> ids, positions, type_ids, row_of;  // [tokens]
  std::span<const int32_t> starts;                            // [sequences + 1]
  std::span<const int32_t> labels;                            // [sequences, label_words]
  std::span<const uint64_t>
      samples;  // [sequences] epoch * rows + position in the epoch's order, times the most
                // sequences a row has, plus the sequence's place in its row
  std::span<const uint64_t> rows;                    // [sequences] of the dataset
  std::span<const int32_t> target_rows, target_ids;  // [targets]
  int64_t longest = 0;

  int64_t sequences() const { return int64_t(samples.size()); }
  int64_t label_words() const {
    return samples.empty() ? 1 : int64_t(labels.size() / samples.size());
  }
  Batch view() const;
};

struct StepBatch {
  uint64_t step = 0, epoch = 0;
  uint64_t examples = 0, tokens = 0;
  uint64_t targets = 0;  // what the loss is the mean of: tokens to be predicted, or else examples
  double weight = 0;     // of all targets: their number where classes have no weights
  uint64_t rows_checksum = 0;  // the sum of mix64(row): over an epoch, the same whatever the order
  std::span<const MicroBatch> micro_batches;
};

// The last batch of an epoch may be smaller than the others.
uint64_t steps_per_epoch(uint64_t rows, uint64_t batch_size);

// Packs sequences of these lengths into as few bins of `capacity` as first-fit decreasing finds;
// ties keep their order. Entries of no length are left out. Scratch is kept between calls.
class Packer {
 public:
  explicit Packer(size_t max_sequences);
  // Returns the number of bins. order() then lists sequences bin by bin, bin_sizes() how many of
  // them each bin has.
  size_t pack(std::span<const uint32_t> lengths, int64_t capacity);
  std::span<const uint32_t> order() const { return order_; }
  std::span<const uint32_t> bin_sizes() const { return bin_sizes_; }
  static size_t bytes(size_t max_sequences);

 private:
  std::vector<uint32_t> sorted_, bin_of_, order_, bin_sizes_, bin_ends_;
  std::vector<int64_t> bin_left_;
};

class BatchStream {
 public:
  // `data` must outlive the stream. An example longer than the capacity is refused here (kBudget).
  BatchStream(const Dataset& data, const BatchOptions& options);
  ~BatchStream();
  BatchStream(const BatchStream&) = delete;

  // The next step, valid until the next call; false at the end. Rethrows what failed in the
  // background, after the steps that were ready before it. Steps whose examples all lack tokens
  // still come, with no micro-batches.
  bool next(const StepBatch*& step);

  // Exactly what the constructor reserves.
  static size_t buffer_bytes(const Dataset& data, const BatchOptions& options);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug
