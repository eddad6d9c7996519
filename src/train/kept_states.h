// What the frozen layers in front of a model give for every row of the data, kept in a file without
// a name (--keep-frozen). It is filled once, before training, in the order of the data and in
// micro-batches of the plan's capacity: the same plan keeps the same bits, also in a run that is
// resumed. Where a row's states begin stands in the file too, so that millions of rows take no
// memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "core/nameless_file.h"
#include "data/batches.h"
#include "runtime/engine.h"

namespace snug {

class KeptStates {
 public:
  struct Size {
    TensorDesc states{};  // as kept_states() has them for a micro-batch
    uint64_t rows = 0;    // of the data
    uint64_t tokens = 0;  // at most, of all rows together
    bool one_state() const { return states.rows_are == Rows::kSequences; }  // of a row
    uint64_t state_bytes() const { return uint64_t(states.cols) * dtype_bytes(states.dtype); }
    uint64_t file_bytes() const;
  };
  // Takes the room on the disk at once; none is kStorage.
  KeptStates(const std::filesystem::path& folder, const Size& size);

  // Of the micro-batches of `data`, each row of which comes once. Ends early, with false, when
  // `stop` says so.
  bool fill(const Dataset& data, const BatchOptions& batches, Engine& engine,
            const std::function<bool()>& stop);
  // Those of a micro-batch's rows to where the engine wants them, before it accumulates the
  // micro-batch.
  void give(const MicroBatch& micro_batch, Engine& engine) const;

  // One row's.
  void keep(uint64_t row, std::span<const std::byte> states);
  // Into the beginning of `to`; returns how many bytes.
  size_t read(uint64_t row, std::span<std::byte> to) const;

 private:
  // At the beginning of the file, one for each row.
  struct Entry {
    uint64_t offset = 0, bytes = 0;
  };

  // Where the state of a micro-batch's sequence begins.
  size_t place(const MicroBatch& batch, size_t sequence) const {
    return (size_.one_state() ? sequence : size_t(batch.starts[sequence])) * size_.state_bytes();
  }

  Size size_;
  NamelessFile file_;
  uint64_t end_;  // where the next row's states go
};

}  // namespace snug
