// The rows of several files end to end, with their texts: all of them, or those that a dataset has.
#pragma once

#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "data/data_files.h"
#include "data/dataset.h"
#include "data/row_stream.h"

namespace snug {

class RowFiles {
 public:
  struct Settings {
    RowReaderOptions reading{};
    bool skip_bad_rows = false;
    uint64_t most_rows = std::numeric_limits<uint64_t>::max();
  };
  RowFiles(std::vector<std::filesystem::path> files, const Settings& settings);
  // The texts behind the rows of `data`, each once, however many windows it has. `data` must
  // outlive it.
  RowFiles(const Dataset& data, const RowReaderOptions& reading);

  bool next(Row& row);
  // The row that next() gave last has turned out to be wrong: throws unless wrong rows are skipped.
  void leave_out(const Error& error);

  const std::filesystem::path& file() const { return files_[file_]; }  // of that row
  std::string name() const { return name_of_files(files_); }           // of all files
  const SkippedRows& skipped() const { return skipped_; }

 private:
  void open(size_t file);
  bool next_of_all(Row& row);
  bool next_of_data(Row& row);

  std::vector<std::filesystem::path> files_;
  Settings settings_;
  const Dataset* data_ = nullptr;
  uint64_t next_row_ = 0;  // of the data
  uint64_t given_ = 0;
  SkippedRows skipped_;
  size_t file_ = 0;
  std::optional<RowStream> rows_;  // of that file
};

}  // namespace snug
