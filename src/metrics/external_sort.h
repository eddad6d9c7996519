// Records in order, in bounded memory: what does not fit goes as sorted runs to a file without a
// name and is merged when read. Areas under curves and ranks need all examples in order, whatever
// their number.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/nameless_file.h"

namespace snug {

// What a sort occupies, however many records it is given.
inline constexpr size_t kSortBytes = 1 << 20;

template <class Record>  // plain bytes with a total order, operator<
class ExternalSort {
  static_assert(std::is_trivially_copyable_v<Record>);

  struct Run {
    uint64_t begin, end;  // records in the file
  };

 public:
  // The folder is touched only when the buffer is full.
  explicit ExternalSort(std::filesystem::path folder, size_t buffer_bytes = kSortBytes)
      : folder_(std::move(folder)),
        capacity_(std::max<size_t>(kBlock, buffer_bytes / sizeof(Record))),
        memory_(std::make_unique_for_overwrite<Record[]>(capacity_)) {}

  uint64_t size() const { return size_; }

  void add(const Record& record) {
    if (count_ == capacity_) spill();
    memory_[count_++] = record;
    sorted_ = false;
    ++size_;
  }

  void clear() {
    runs_.clear();
    file_.reset();
    size_ = count_ = 0;
  }

  // The records in order. Adding ends the life of all readers.
  class Reader {
   public:
    bool next(Record& record) {
      if (cursors_.empty()) return false;
      Cursor& first = cursors_.front();
      record = first.block[first.at++];
      if (first.at == first.block.size() && !refill(first)) {
        first = cursors_.back();
        cursors_.pop_back();
      }
      sink();
      return true;
    }

   private:
    friend ExternalSort;

    struct Cursor {
      Run left;                 // of the run, in the file
      std::span<Record> block;  // what has been read of it; its memory
      size_t room, at;
    };

    static bool later(const Cursor& a, const Cursor& b) { return b.block[b.at] < a.block[a.at]; }

    bool refill(Cursor& cursor) {
      const auto count =
          size_t(std::min<uint64_t>(cursor.room, cursor.left.end - cursor.left.begin));
      cursor.block = {cursor.block.data(), count};
      cursor.at = 0;
      if (count == 0) return false;
      file_->read(cursor.left.begin * sizeof(Record), std::as_writable_bytes(cursor.block));
      cursor.left.begin += count;
      return true;
    }

    // The first cursor is another or has moved on: down to its place in the heap.
    void sink() {
      for (size_t at = 0;;) {
        size_t least = at;
        for (const size_t child : {2 * at + 1, 2 * at + 2}) {
          if (child < cursors_.size() && later(cursors_[least], cursors_[child])) least = child;
        }
        if (least == at) return;
        std::swap(cursors_[at], cursors_[least]);
        at = least;
      }
    }

    const NamelessFile* file_ = nullptr;
    std::vector<Cursor> cursors_;  // a heap: the least record is in the first
  };

  // Of `readers` that read at the same time this is the number `reader`: they share the buffer.
  Reader read(size_t reader = 0, size_t readers = 1) {
    Reader result;
    if (runs_.empty()) {
      if (!std::exchange(sorted_, true)) sort_added();
      if (count_ > 0) result.cursors_.push_back({{0, 0}, added(), 0, 0});
      return result;
    }
    if (count_ > 0) spill();
    const size_t share = capacity_ / readers;
    return merge({memory_.get() + reader * share, share});
  }

 private:
  static constexpr size_t kBlock = 64;  // records; a run is never read in smaller portions

  std::span<Record> added() const { return {memory_.get(), count_}; }
  void sort_added() { std::sort(memory_.get(), memory_.get() + count_); }

  // What has been added becomes a run. So many runs that their blocks would become small are merged
  // into one.
  void spill() {
    sort_added();
    if (!file_) file_.emplace(folder_, "scores to be sorted");
    write(*file_, spilled(), added());
    runs_.push_back({spilled(), spilled() + count_});
    count_ = 0;
    if (runs_.size() >= std::max<size_t>(2, capacity_ / (4 * kBlock))) join_runs();
  }

  uint64_t spilled() const { return runs_.empty() ? 0 : runs_.back().end; }

  static void write(NamelessFile& file, uint64_t at, std::span<const Record> records) {
    file.write(at * sizeof(Record), std::as_bytes(records));
  }

  void join_runs() {
    const std::span<Record> memory(memory_.get(), capacity_);
    const size_t half = capacity_ / 2;
    Reader reader = merge(memory.first(half));
    NamelessFile joined(folder_, "scores to be sorted");
    uint64_t written = 0;
    for (bool more = true; more;) {
      size_t count = 0;
      while (count < capacity_ - half && (more = reader.next(memory[half + count]))) ++count;
      write(joined, written, memory.subspan(half, count));
      written += count;
    }
    *file_ = std::move(joined);
    runs_ = {{0, written}};
  }

  Reader merge(std::span<Record> memory) {
    Reader reader;
    reader.file_ = &*file_;
    const size_t room = memory.size() / runs_.size();
    for (size_t i = 0; i < runs_.size(); ++i) {
      typename Reader::Cursor cursor{runs_[i], memory.subspan(i * room, 0), room, 0};
      if (reader.refill(cursor)) reader.cursors_.push_back(cursor);
    }
    std::ranges::make_heap(reader.cursors_, Reader::later);
    return reader;
  }

  std::filesystem::path folder_;
  size_t capacity_;
  std::unique_ptr<Record[]> memory_;  // the records that were added last; what merging reads into
  size_t count_ = 0;
  bool sorted_ = true;
  std::vector<Run> runs_;
  std::optional<NamelessFile> file_;
  uint64_t size_ = 0;
};

}  // namespace snug
