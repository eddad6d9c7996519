// Rows that are wrong and left out (--skip-bad-rows): their number, and a list with the file, the
// line and the reason of each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace snug {

// "a.csv: 3 rows are wrong and left out".
std::string skipped_rows_text(const std::string& name, uint64_t count);

class SkippedRows {
 public:
  static constexpr uint64_t kMostListed = 100'000;
  static constexpr size_t kMostShown = 5;

  // The list, as JSON lines, appears there when it is committed; an empty path: it is not written.
  explicit SkippedRows(std::filesystem::path list = {}) : path_(std::move(list)) {}

  // `error` says "FILE: line N: reason", as all errors of rows do.
  void add(const std::string& file, const Error& error);
  uint64_t count() const { return count_; }
  const std::vector<std::string>& first() const { return first_; }  // messages, kMostShown at most
  void commit();  // writes what was listed; an older list is removed where nothing was

 private:
  std::filesystem::path path_;
  std::optional<OutputFile> list_;
  uint64_t count_ = 0;
  std::vector<std::string> first_;
};

}  // namespace snug
