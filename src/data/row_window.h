// Rows of a dataset on their way into batches. A read of its own costs more than a row of a few
// tokens, so the stored rows of a whole stretch of an epoch's order are looked up and read in the
// order in which they lie in the files, neighbours together, and then used in any order. All memory
// is taken by the constructor.
//
// Reading may go on a bit at a time, beside the use of the stretch before, so that nobody waits for
// a whole stretch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/epoch_order.h"

namespace snug {

class RowWindow {
 public:
  struct Limits {
    size_t rows = 0, record_bytes = 0;  // of a stretch
  };
  // Room for a step of so many rows, whatever they are, or else for as many steps as a fixed size
  // usually holds.
  static Limits limits(const Dataset& data, size_t rows_per_step);
  static size_t bytes(const Limits& limits);  // what the constructor takes

  RowWindow(const Dataset& data, const Limits& limits);  // `data` must outlive the window

  // Positions [first, first + count) of an epoch's order, at most limits.rows. Where their records
  // are more bytes than there is room for, the last steps are left out; the first is always there.
  struct Stretch {
    uint64_t first = 0;
    size_t count = 0, rows_per_step = 1;
  };
  void start(const EpochOrder& order, const Stretch& stretch);
  // Spends about so much effort on the reading, in units of its own, at least a bit. Problems with
  // a cache are kStorage.
  void work(uint64_t effort);
  uint64_t effort_left() const;

  // Of a stretch that has been read. `i` counts its rows, from 0 to size().
  size_t size() const { return count_; }
  uint64_t row(size_t i) const { return rows_[i]; }  // of the dataset
  uint32_t length(size_t i) const;                   // ids
  // Replaces the contents of `out`, keeping its capacity: with vectors that have room for longest()
  // ids it allocates nothing. A row may have no tokens where labels are not required.
  void read(size_t i, Example& out) const;

 private:
  enum class Phase : uint8_t { kRows, kPlaces, kRecords, kDone };
  static uint64_t effort_per_row(Phase phase);
  size_t advance();
  size_t find_rows();
  size_t read_places();
  size_t read_records();
  void end_phase();
  void keep_whole_steps();

  uint64_t place(size_t in_files) const { return keys_[in_files] >> index_bits_; }  // in all files
  size_t index(size_t in_files) const {
    return size_t(keys_[in_files] & ((uint64_t{1} << index_bits_) - 1));
  }
  struct StoredRow;
  StoredRow stored(size_t i) const;

  const Dataset* data_;
  int index_bits_;
  std::optional<EpochOrder> order_;
  Stretch stretch_;
  Phase phase_ = Phase::kDone;
  size_t count_ = 0, done_ = 0;  // rows of the stretch; those that this phase has done
  std::vector<uint64_t> rows_;   // [i] of the dataset
  std::vector<uint64_t> keys_;  // [in the order of the files] place in all files, above the row's i
  std::vector<uint64_t> begins_;  // [i] of its record in its cache
  std::vector<uint64_t> ends_;    // [i] of its record in records_; until all are known, its size
  std::vector<char> records_, chunk_;
};

}  // namespace snug
