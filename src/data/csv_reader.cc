// Comma-separated values by RFC 4180. A record is found first and cut into fields by offset; only
// the fields that are wanted are unescaped, in place in the window, so no row is ever copied.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/columns.h"
#include "data/readers.h"

namespace snug {
namespace {

// Offsets from the record's first byte, without the enclosing quotes.
struct Field {
  size_t begin = 0, end = 0;
  bool escaped = false;  // holds "" pairs
};

class CsvReader final : public RowReader {
 public:
  CsvReader(TextWindow window, const RowReaderOptions& options) : window_(std::move(window)) {
    if (!next_record()) fail(ErrorKind::kInput, "{}: the file is empty", window_.file());
    if (options.has_header) {
      std::vector<std::string> names;
      for (const Field& field : fields_) names.emplace_back(value(field));
      check_header(names, ',', window_.file());
      map_ = resolve_columns(names, options, window_.file());
    } else {
      first_is_row_ = true;
      map_ = resolve_columns(numbered_columns(fields_.size()), options, window_.file());
    }
  }

  bool next(Row& row) override {
    row = Row{};
    if (first_is_row_) {
      first_is_row_ = false;
    } else if (!next_record()) {
      return false;
    }
    if (fields_.size() != map_.count) refuse_column_count();
    row.line = record_line_;
    row.text = value(fields_[map_.text]);
    if (map_.text_pair) row.text_pair = value(fields_[*map_.text_pair]);
    if (map_.label) row.label = value(fields_[*map_.label]);
    return true;
  }
  uint64_t passed() const override { return window_.line(); }
  uint64_t bytes_read() const override { return window_.stored_bytes(); }
  const Columns& columns() const override { return map_.names; }

 private:
  // Leaves the next record that is not a blank line in record_ and fields_.
  bool next_record() {
    do {
      if (!find_record()) return false;
    } while (record_size_ == 0);
    return true;
  }

  bool find_record();
  size_t find_plain_end(size_t at);
  size_t find_quoted_end(size_t at);
  bool has_byte(size_t at);
  void finish_record(size_t size, size_t break_size);
  // What is wrong there ends with its line: whoever goes on does so behind it.
  void pass_line(size_t at);
  std::string_view value(const Field& field);
  [[noreturn]] void refuse_unclosed(size_t quote);
  [[noreturn]] void refuse_column_count() const;

  uint64_t breaks_before(size_t at) {
    return uint64_t(std::count(window_.data(), window_.data() + at, terminator_));
  }

  TextWindow window_;
  ColumnMap map_;
  char terminator_ = '\n';
  // The record found last; it stays in the window until the next one is looked for.
  char* record_ = nullptr;
  size_t record_size_ = 0;
  uint64_t record_line_ = 1;
  std::vector<Field> fields_;
  size_t line_end_ = 0;      // no line break lies between the current field and this offset
  bool any_quoted_ = false;  // only such a record can span lines
  bool first_is_row_ = false;
};

bool CsvReader::has_byte(size_t at) {
  while (at >= window_.size()) {
    if (window_.fill() != TextWindow::Fill::kMore) return false;
  }
  return true;
}

// Cuts the record at the front of the window into fields. Offsets survive fill(), pointers do not.
bool CsvReader::find_record() {
  terminator_ = window_.line_break();
  if (!has_byte(0)) return false;
  fields_.clear();
  line_end_ = 0;
  any_quoted_ = false;
  size_t at = 0;
  for (;;) {
    at = has_byte(at) && window_.data()[at] == '"' ? find_quoted_end(at) : find_plain_end(at);
    if (!has_byte(at)) {
      finish_record(at, 0);
      return true;
    }
    const char found = window_.data()[at];
    if (found == ',') {
      ++at;
      check_column_limit(fields_.size(), window_.line(), window_.file());
    } else {
      finish_record(at, found == terminator_ ? 1 : 2);
      return true;
    }
  }
}

// The offset of the comma or line break after an unquoted field, or of the end of the stream.
size_t CsvReader::find_plain_end(size_t begin) {
  size_t at = begin;
  for (;;) {
    const char* data = window_.data();
    const size_t size = window_.size();
    if (line_end_ < at || line_end_ >= size || data[line_end_] != terminator_) {
      const void* found = std::memchr(data + at, terminator_, size - at);
      line_end_ = found ? size_t(static_cast<const char*>(found) - data) : size;
    }
    const void* comma = std::memchr(data + at, ',', line_end_ - at);
    size_t end = comma ? size_t(static_cast<const char*>(comma) - data) : line_end_;
    if (end < size || !has_byte(size)) {
      if (!comma && terminator_ == '\n' && end > begin && window_.data()[end - 1] == '\r') --end;
      fields_.push_back({begin, end});
      return end;
    }
    at = size;
  }
}

// As above for a field whose opening quote is at `quote`; it may span lines.
size_t CsvReader::find_quoted_end(size_t quote) {
  Field field{quote + 1, quote + 1};
  any_quoted_ = true;
  for (size_t at = quote + 1;;) {
    if (!has_byte(at)) refuse_unclosed(quote);
    const char* data = window_.data();
    const void* found = std::memchr(data + at, '"', window_.size() - at);
    at = found ? size_t(static_cast<const char*>(found) - data) + 1 : window_.size();
    if (!found) continue;
    if (has_byte(at) && window_.data()[at] == '"') {
      field.escaped = true;
      ++at;
      continue;
    }
    field.end = at - 1;
    fields_.push_back(field);
    const bool ends = !has_byte(at) || window_.data()[at] == ',' ||
                      window_.data()[at] == terminator_ ||
                      (terminator_ == '\n' && window_.data()[at] == '\r' &&
                       (!has_byte(at + 1) || window_.data()[at + 1] == '\n'));
    if (ends) return at;
    const uint64_t line = window_.line() + breaks_before(at);
    pass_line(at);
    fail(ErrorKind::kInput,
         "{}: line {}: text after the closing quote of column {}; expected a comma "
         "or the end of the line (a quote inside quotes is written twice)",
         window_.file(), line, fields_.size());
  }
}

void CsvReader::refuse_unclosed(size_t quote) {
  const uint64_t line = window_.line() + breaks_before(quote);
  const bool at_end = window_.size() < window_.max_record_bytes();
  pass_line(quote);
  fail(
      ErrorKind::kInput, "{}: line {}: a quote opens that is never closed{}", window_.file(), line,
      at_end ? std::string() : fmt::format(" (no end after {} bytes)", window_.max_record_bytes()));
}

void CsvReader::pass_line(size_t at) {
  const void* found = std::memchr(window_.data() + at, terminator_, window_.size() - at);
  const size_t end =
      found ? size_t(static_cast<const char*>(found) - window_.data()) + 1 : window_.size();
  window_.consume(end, breaks_before(end) + !found);
}

void CsvReader::finish_record(size_t size, size_t break_size) {
  record_ = window_.data();
  record_size_ = size;
  record_line_ = window_.line();
  if (size >= window_.max_record_bytes()) {
    fail(ErrorKind::kInput, "{}: line {}: record not finished after {} bytes, the most it may have",
         window_.file(), record_line_, window_.max_record_bytes());
  }
  const uint64_t inside = any_quoted_ ? breaks_before(size) : 0;
  window_.consume(std::min(size + break_size, window_.size()), inside + 1);
  check_utf8({record_, size}, terminator_, record_line_, window_.file());
}

std::string_view CsvReader::value(const Field& field) {
  char* begin = record_ + field.begin;
  char* end = record_ + field.end;
  if (!field.escaped) return {begin, end};
  char* out = begin;
  for (const char* in = begin; in < end;) {
    const void* found = std::memchr(in, '"', size_t(end - in));
    const char* stop = found ? static_cast<const char*>(found) + 1 : end;
    std::memmove(out, in, size_t(stop - in));
    out += stop - in;
    in = found ? stop + 1 : end;
  }
  return {begin, out};
}

void CsvReader::refuse_column_count() const {
  fail(ErrorKind::kInput, "{}: line {}: {} column{}, expected {} as in the first record",
       window_.file(), record_line_, fields_.size(), fields_.size() == 1 ? "" : "s", map_.count);
}

}  // namespace

std::unique_ptr<RowReader> csv_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<CsvReader>(std::move(window), options);
}

}  // namespace snug
