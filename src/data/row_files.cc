#include "data/row_files.h"

namespace snug {

RowFiles::RowFiles(std::vector<std::filesystem::path> files, const Settings& settings)
    : files_(std::move(files)), settings_(settings) {
  open(0);
}

// Its wrong rows are not among those of the data.
RowFiles::RowFiles(const Dataset& data, const RowReaderOptions& reading)
    : files_(data.sources()), settings_{.reading = reading, .skip_bad_rows = true}, data_(&data) {}

void RowFiles::open(size_t file) {
  file_ = file;
  rows_.emplace(open_rows(files_[file], settings_.reading), files_[file].string(),
                settings_.skip_bad_rows ? &skipped_ : nullptr);
}

bool RowFiles::next(Row& row) { return data_ != nullptr ? next_of_data(row) : next_of_all(row); }

bool RowFiles::next_of_all(Row& row) {
  if (given_ == settings_.most_rows) return false;
  while (!rows_->next(row)) {
    if (file_ + 1 == files_.size()) return false;
    open(file_ + 1);
  }
  ++given_;
  return true;
}

bool RowFiles::next_of_data(Row& row) {
  if (next_row_ == data_->rows()) return false;
  const Dataset::Origin origin = data_->origin(next_row_);
  if (!rows_ || origin.source != file_) open(origin.source);
  do {
    if (!rows_->next(row)) {
      fail(ErrorKind::kInput,
           "{}: has fewer rows than when it was first read; it must not change while it is used",
           file().string());
    }
  } while (uint32_t(rows_->number()) != origin.number);
  while (next_row_ + 1 < data_->rows() && data_->origin(next_row_).continues) ++next_row_;
  ++next_row_;
  return true;
}

void RowFiles::leave_out(const Error& error) {
  rows_->leave_out(error);
  --given_;
}

}  // namespace snug
