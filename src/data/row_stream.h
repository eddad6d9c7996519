// The rows of a file with their numbers; wrong ones are left out where that is asked for.
#pragma once

#include <memory>
#include <string>

#include "data/row_reader.h"
#include "data/skipped_rows.h"

namespace snug {

// What was found to be wrong with a row without knowing where the row is from, said with its place.
Error with_place(const Error& error, const std::string& file, const Row& row);
// Whether the row is what is wrong, or too large for the memory.
inline bool is_of_row(const Error& error) {
  return error.kind() == ErrorKind::kInput || error.kind() == ErrorKind::kBudget;
}

class RowStream {
 public:
  // `skipped` (null: a wrong row is an error) must outlive the stream; `file` is for its list.
  RowStream(std::unique_ptr<RowReader> reader, std::string file, SkippedRows* skipped)
      : reader_(std::move(reader)), file_(std::move(file)), skipped_(skipped) {}

  bool next(Row& row);
  // Of the row that next() gave last, from 0; wrong rows count.
  uint64_t number() const { return passed_ - 1; }
  // That row has turned out to be wrong after all. Throws where wrong rows are errors, and what is
  // not the row's fault.
  void leave_out(const Error& error);

  const RowReader& reader() const { return *reader_; }

 private:
  std::unique_ptr<RowReader> reader_;
  std::string file_;
  SkippedRows* skipped_;
  uint64_t passed_ = 0;
};

}  // namespace snug
