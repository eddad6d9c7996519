// What is in data files, and what is wrong with it: `snug data`. One pass over each file; memory
// does not grow with their rows.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/row_labels.h"
#include "text/tokenizer.h"

namespace snug {

struct DataReportOptions {
  std::vector<std::filesystem::path> files, validation{};  // validation may be empty
  Labelling labelling = Labelling::kClass;
  Columns columns{};
  bool has_header = true;
  char label_separator = ',';
  const Tokenizer* tokenizer = nullptr;  // null: lengths are not measured
  size_t max_length = 0;                 // tokens; 0: no limit to compare with
  std::filesystem::path scratch;         // hashes of texts that have no room in memory
};

// Files that belong together.
struct FilesReport {
  uint64_t rows = 0;  // that can be read
  uint64_t bad_rows = 0;
  std::vector<std::string> first_bad{}, problems{};  // problems: of the files as a whole
  uint64_t unlabelled = 0;
  std::map<std::string, uint64_t> labels{};  // of rows, or of words
  uint64_t words = 0;                        // where they are labelled
  uint64_t answered = 0, unanswerable = 0;   // where rows are questions
  double least = 0, most = 0, sum = 0;       // where labels are numbers
  uint64_t tokens = 0;
  std::map<uint32_t, uint64_t> lengths{};  // tokens -> rows
  uint64_t duplicates = 0;                 // rows whose text an earlier one has
  uint64_t contradictions = 0;             // texts that have several labels

  // The length that this share of the rows does not exceed.
  uint32_t percentile(double share) const;
  uint64_t longer_than(size_t length) const;
};

struct DataReport {
  DataReportOptions options;
  FilesReport files;
  std::optional<FilesReport> validation;
  uint64_t shared = 0;  // validation rows whose text is in the other files too

  std::string to_text() const;
  std::string to_json() const;
};

// Files without any row that can be read are refused (kInput), and so is a max_length without a
// tokenizer (kUsage).
DataReport examine_data(const DataReportOptions& options);

}  // namespace snug
