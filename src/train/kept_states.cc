#include "train/kept_states.h"

#include "core/error.h"
#include "core/progress.h"

namespace snug {
namespace {

// The sequences [first, end) of a micro-batch that one row consists of, where no row comes twice.
size_t end_of_row(const MicroBatch& batch, size_t first) {
  size_t end = first + 1;
  while (end < batch.rows.size() && batch.rows[end] == batch.rows[first]) ++end;
  return end;
}

}  // namespace

uint64_t KeptStates::Size::file_bytes() const {
  return rows * sizeof(Entry) + (one_state() ? rows : tokens) * state_bytes();
}

KeptStates::KeptStates(const std::filesystem::path& folder, const Size& size)
    : size_(size), file_(folder, "the output of frozen layers"), end_(size.rows * sizeof(Entry)) {
  file_.reserve(
      size.file_bytes(),
      "--cache-dir names another folder, --keep-frozen off computes it anew in every step");
}

void KeptStates::keep(uint64_t row, std::span<const std::byte> states) {
  SNUG_CHECK(row < size_.rows && end_ + states.size() <= size_.file_bytes());
  const Entry entry{end_, states.size()};
  file_.write(end_, states);
  file_.write(row * sizeof(Entry), std::as_bytes(std::span(&entry, 1)));
  end_ += states.size();
}

size_t KeptStates::read(uint64_t row, std::span<std::byte> to) const {
  Entry entry;
  file_.read(row * sizeof(Entry), std::as_writable_bytes(std::span(&entry, 1)));
  SNUG_CHECK(entry.bytes > 0 && entry.bytes <= to.size());
  file_.read(entry.offset, to.first(entry.bytes));
  return entry.bytes;
}

bool KeptStates::fill(const Dataset& data, const BatchOptions& batches, Engine& engine,
                      const std::function<bool()>& stop) {
  Progress progress("running the frozen layers", data.rows(), "examples");
  BatchStream stream(data, batches);
  uint64_t examples = 0;
  for (const StepBatch* step; stream.next(step);) {
    for (const MicroBatch& batch : step->micro_batches) {
      if (stop()) return false;
      const std::span<const std::byte> states = engine.run_prefix(batch.view());
      for (size_t first = 0; first < batch.rows.size();) {
        const size_t end = end_of_row(batch, first);
        keep(batch.rows[first],
             states.subspan(place(batch, first), place(batch, end) - place(batch, first)));
        first = end;
      }
    }
    progress.update(examples += step->examples);
  }
  return true;
}

void KeptStates::give(const MicroBatch& batch, Engine& engine) const {
  const std::span<std::byte> to = engine.given_states(batch.view().dims);
  size_t done = 0;
  for (size_t sequence = 0; sequence < batch.rows.size();) {
    done += read(batch.rows[sequence], to.subspan(done));
    while (place(batch, sequence) < done) {
      ++sequence;  // a row may be several, and may be there twice
    }
  }
  SNUG_CHECK(done == to.size());
}

}  // namespace snug
