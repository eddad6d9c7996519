// Rows of labelled text from CSV, TSV, JSON Lines or plain lines, each also compressed (.gz, .zst), streamed: memory
// does not grow with the number of rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

// Which columns to read. Empty means: by the usual names (see docs/data.md).
struct Columns {
  std::string text, text_pair, label;
};

// Views are valid until the next call of next().
struct Row {
  std::string_view text;
  std::optional<std::string_view> text_pair;
  std::optional<std::string_view> label;  // as written; integers in their decimal form
  uint64_t line = 0;                      // 1-based line where the row begins, for messages
};

enum class LabelNeed { kRequired, kOptional, kIgnored };

class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual bool next(Row& row) = 0;  // false at the end; throws Error (kInput) with file and line
  virtual uint64_t bytes_read() const = 0;  // of the file as stored, for progress
  virtual const Columns& columns() const = 0;  // as resolved: the names in the file
};

// Format by extension after stripping .gz/.zst: .csv, .tsv, .jsonl/.json, .txt. Path "-" is standard input (by
// `stdin_format`, an extension). Refusals (kInput) name the file, the line, what was found and what was expected.
struct RowReaderOptions {
  Columns columns;
  LabelNeed labels = LabelNeed::kRequired;
  std::string stdin_format = "txt";
};
std::unique_ptr<RowReader> open_rows(const std::filesystem::path& path, const RowReaderOptions& options);

}  // namespace snug
