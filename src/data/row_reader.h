// Rows of labelled text from CSV, TSV, JSON Lines or plain lines, of words from columns or JSON
// Lines, of questions from SQuAD's JSON or JSON Lines, each also compressed (.gz, .zst), streamed:
// memory does not grow with the number of rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/byte_source.h"

namespace snug {

// Which columns to read: a name in the file, or "#N" for the N-th from 1. Empty means: by the usual
// names (docs/data.md). text_pair "-" means: none, even where a usual name is there.
struct Columns {
  std::string text{}, text_pair{}, label{};
};

// What the rows of a file are.
enum class RowKind : uint8_t {
  kTexts,      // a text or two, with or without a label
  kWords,      // a text cut into words, each with a label of its own
  kQuestions,  // a question and the text that holds its answer
};

struct Word {
  size_t begin = 0, end = 0;  // bytes of the text
  std::string_view
      label{};  // empty where there is none; where labels are required, only for JSON's -100
};

struct Answer {
  std::string_view text{};
  uint64_t begin = 0;  // code points of the context
};

// Views are valid until the next call of next().
struct Row {
  std::string_view text{};
  std::optional<std::string_view> text_pair{};
  std::optional<std::string_view>
      label{};             // as written; JSON numbers in decimal, booleans as true/false
  uint64_t line = 0;       // 1-based line where the row begins, for messages
  bool continues = false;  // the next row is more of the same document
  // Of kWords: the text is the words with a space between each two, unless the file has the text
  // itself.
  std::span<const Word> words{};
  // Of kQuestions: the text is the question, the second text the context. No answer: the context
  // has none.
  std::span<const Answer> answers{};
  std::string_view id{};
};

enum class LabelNeed { kRequired, kOptional, kIgnored };

class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual bool next(Row& row) = 0;  // false at the end; throws Error (kInput) with file and line
  // Grows whenever next() leaves a row behind, a wrong one too. Where it has grown, next() may be
  // called again after it has thrown and goes on behind that row; otherwise the rest of the file
  // cannot be read.
  virtual uint64_t passed() const = 0;
  virtual uint64_t bytes_read() const = 0;     // of the file as stored, for progress
  virtual const Columns& columns() const = 0;  // as resolved: the names in the file
};

struct RowReaderOptions {
  RowKind kind = RowKind::kTexts;
  Columns columns{};
  LabelNeed labels = LabelNeed::kRequired;
  std::string stdin_format = "txt";  // an extension, as in "jsonl" or "csv.gz"
  bool has_header = true;            // CSV and TSV; without one, columns are named by number
  bool documents = false;            // plain text: the file is one document, handed out in pieces,
                                     // line breaks included, instead of a row for each line
  char label_separator = 0;  // JSON Lines: a list of labels is handed out as one text with this
                             // between each two; 0: a row has one label, a list is refused
  size_t max_record_bytes = 64 << 20;
  // What the memory has room for while it passes, see reading_bytes(): a longer record is refused
  // as kBudget.
  uint64_t record_room = std::numeric_limits<uint64_t>::max();
};

// Format by kind and extension after stripping .gz/.zst (docs/data.md). Path "-" is standard input.
// Refusals (kInput) name the file, the line, what was found and what was expected.
std::unique_ptr<RowReader> open_rows(const std::filesystem::path& path,
                                     const RowReaderOptions& options);

// Memory that reading such a file takes at most, where its longest record has so many bytes. Up to
// kUsualTextBytes make no difference; longer ones take up to 5 times their size while they pass, in
// JSON 20 times.
inline constexpr uint64_t kUsualTextBytes = 64 << 10;
uint64_t reading_bytes(const std::filesystem::path& path, uint64_t longest_record_bytes);

// The same over bytes from anywhere; `name` decides the format and stands in messages.
std::unique_ptr<RowReader> open_rows(std::unique_ptr<ByteSource> stored, const std::string& name,
                                     const RowReaderOptions& options);

}  // namespace snug
