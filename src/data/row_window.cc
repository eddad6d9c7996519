#include "data/row_window.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "data/dataset_files.h"

namespace snug {
namespace {

constexpr size_t kWindowBytes = 2 << 20;
constexpr size_t kChunkBytes = 64 << 10;
// Reading over a gap takes less time than another read, and touches hardly more pages of a disk.
constexpr uint64_t kGapBytes = 8 << 10;
constexpr size_t kBytesPerRow = 4 * sizeof(uint64_t);  // besides its record

}  // namespace

RowWindow::Limits RowWindow::limits(const Dataset& data, size_t rows_per_step) {
  const Dataset::Files& files = *data.files_;
  const uint64_t mean = (files.records_bytes + files.rows - 1) / files.rows;
  const uint64_t steps =
      std::max<uint64_t>(1, kWindowBytes / (kBytesPerRow + mean) / rows_per_step);
  const uint64_t rows = std::min(steps * rows_per_step, data.epoch_examples());
  uint64_t record_bytes =
      std::max(rows * mean, std::min<uint64_t>(rows, rows_per_step) * files.most_record_bytes());
  if (data.shares().empty()) {
    record_bytes = std::min(record_bytes, files.records_bytes);  // no row comes twice
  }
  return {rows, record_bytes};
}

size_t RowWindow::bytes(const Limits& limits) {
  return limits.rows * kBytesPerRow + limits.record_bytes + kChunkBytes;
}

RowWindow::RowWindow(const Dataset& data, const Limits& limits)
    : data_(&data),
      index_bits_(std::bit_width(limits.rows)),
      rows_(limits.rows),
      begins_(limits.rows),
      ends_(limits.rows),
      records_(limits.record_bytes),
      chunk_(kChunkBytes) {
  keys_.reserve(limits.rows);
  SNUG_CHECK(data.files_->rows < uint64_t{1} << (64 - index_bits_));
}

void RowWindow::start(const EpochOrder& order, const Stretch& stretch) {
  SNUG_CHECK(stretch.count <= rows_.size());
  order_.emplace(order);
  stretch_ = stretch;
  count_ = stretch.count;
  phase_ = count_ > 0 ? Phase::kRows : Phase::kDone;
  done_ = 0;
  keys_.clear();
}

// Measured in about 30 ns, from the cache of the system.
uint64_t RowWindow::effort_per_row(Phase phase) {
  switch (phase) {
    case Phase::kRows:
      return 6;
    case Phase::kPlaces:
      return 16;
    case Phase::kRecords:
      return 50;
    case Phase::kDone:
      return 0;
  }
  return 0;
}

uint64_t RowWindow::effort_left() const {
  if (phase_ == Phase::kDone) return 0;
  uint64_t left = (count_ - done_) * effort_per_row(phase_);
  for (auto later = uint8_t(phase_) + 1; later < uint8_t(Phase::kDone); ++later) {
    left += count_ * effort_per_row(Phase(later));
  }
  return left;
}

void RowWindow::work(uint64_t effort) {
  for (uint64_t spent = 0; phase_ != Phase::kDone && spent <= effort;) {
    const uint64_t per_row = effort_per_row(phase_);
    const size_t before = done_;
    done_ = advance();
    spent += (done_ - before) * per_row;
    if (done_ == count_) end_phase();
  }
}

// Returns how many rows are done then.
size_t RowWindow::advance() {
  switch (phase_) {
    case Phase::kRows:
      return find_rows();
    case Phase::kPlaces:
      return read_places();
    case Phase::kRecords:
      return read_records();
    case Phase::kDone:
      break;
  }
  return done_;
}

void RowWindow::end_phase() {
  if (phase_ == Phase::kRows) std::ranges::sort(keys_);
  if (phase_ == Phase::kPlaces) keep_whole_steps();
  phase_ = Phase(uint8_t(phase_) + 1);
  done_ = 0;
}

size_t RowWindow::find_rows() {
  constexpr size_t kRowsAtOnce = 256;
  const size_t end = std::min(done_ + kRowsAtOnce, count_);
  for (size_t i = done_; i < end; ++i) {
    rows_[i] = (*order_)(stretch_.first + i);
    keys_.push_back(data_->place_of(rows_[i]) << index_bits_ | i);
  }
  return end;
}

// Offsets of rows that lie near each other, with one read.
size_t RowWindow::read_places() {
  const Dataset::Source& source = data_->files_->source_of(place(done_));
  const uint64_t first = place(done_) - source.first_row;
  const auto row_of = [&](size_t in_files) { return place(in_files) - source.first_row; };
  size_t end = done_ + 1;
  for (; end < count_; ++end) {
    const uint64_t row = row_of(end);
    if (row >= source.header().rows || row - row_of(end - 1) > kGapBytes / sizeof(uint64_t)) break;
    if ((row + 2 - first) * sizeof(uint64_t) > kChunkBytes) break;
  }
  const size_t bytes = (row_of(end - 1) + 2 - first) * sizeof(uint64_t);
  source.cache.file.read_exactly(source.header().index_begin + first * sizeof(uint64_t),
                                 chunk_.data(), bytes);
  for (size_t in_files = done_; in_files < end; ++in_files) {
    uint64_t bounds[2];
    std::memcpy(bounds, chunk_.data() + (row_of(in_files) - first) * sizeof(uint64_t),
                sizeof bounds);
    source.check_bounds(row_of(in_files), bounds[0], bounds[1]);
    begins_[index(in_files)] = bounds[0];
    ends_[index(in_files)] = bounds[1] - bounds[0];
  }
  return end;
}

// Leaves out the steps whose records have no room, and gives the others' their places.
void RowWindow::keep_whole_steps() {
  size_t kept = 0;
  uint64_t end = 0;
  for (size_t i = 0; i < count_; ++i) {
    end += ends_[i];
    if (end > records_.size()) break;
    ends_[i] = end;
    if ((i + 1) % stretch_.rows_per_step == 0 || i + 1 == count_) kept = i + 1;
  }
  if (kept == 0) {  // records overlap
    const Dataset::Source& source = data_->files_->source_of(place(0));
    source.refuse(place(0) - source.first_row);
  }
  count_ = kept;
  std::erase_if(keys_,
                [&](uint64_t key) { return (key & ((uint64_t{1} << index_bits_) - 1)) >= kept; });
}

// Records that lie near each other, with one read.
size_t RowWindow::read_records() {
  const Dataset::Source& source = data_->files_->source_of(place(done_));
  const auto size_of = [&](size_t i) { return ends_[i] - (i == 0 ? 0 : ends_[i - 1]); };
  const auto target = [&](size_t i) { return records_.data() + ends_[i] - size_of(i); };
  const uint64_t first = begins_[index(done_)];
  uint64_t last = first + size_of(index(done_));  // behind what is read
  size_t end = done_ + 1;
  for (; end < count_ && place(end) - source.first_row < source.header().rows; ++end) {
    const size_t i = index(end);
    if (begins_[i] < first) source.refuse(place(end) - source.first_row);
    const uint64_t behind = std::max(last, begins_[i] + size_of(i));
    if (begins_[i] > last + kGapBytes || behind - first > kChunkBytes) break;
    last = behind;
  }
  char* const to = end == done_ + 1 ? target(index(done_)) : chunk_.data();
  source.cache.file.read_exactly(first, to, last - first);
  if (to == chunk_.data()) {
    for (size_t in_files = done_; in_files < end; ++in_files) {
      const size_t i = index(in_files);
      std::memcpy(target(i), chunk_.data() + (begins_[i] - first), size_of(i));
    }
  }
  return end;
}

struct RowWindow::StoredRow {
  const Dataset::Source& source;
  uint64_t row;  // of the source
  std::span<const char> record;
};

RowWindow::StoredRow RowWindow::stored(size_t i) const {
  SNUG_CHECK(phase_ == Phase::kDone && i < count_);
  const uint64_t place = data_->place_of(rows_[i]);
  const Dataset::Source& source = data_->files_->source_of(place);
  const uint64_t begin = i == 0 ? 0 : ends_[i - 1];
  return {source, place - source.first_row, std::span(records_).subspan(begin, ends_[i] - begin)};
}

uint32_t RowWindow::length(size_t i) const {
  const StoredRow row = stored(i);
  return row.source.length(row.row, row.record);
}

void RowWindow::read(size_t i, Example& out) const {
  const StoredRow row = stored(i);
  row.source.decode(row.row, row.record, data_->files_->label_words, out);
}

}  // namespace snug
