// Tab-separated values as GLUE and most exports write them: no quoting at all, a `"` is a
// character, and a row is a line.
#include <vector>

#include "core/error.h"
#include "data/columns.h"
#include "data/readers.h"

namespace snug {
namespace {

class TsvReader final : public RowReader {
 public:
  TsvReader(TextWindow window, const RowReaderOptions& options) : window_(std::move(window)) {
    if (!window_.next_line(line_)) fail(ErrorKind::kInput, "{}: the file is empty", window_.file());
    split();
    if (options.has_header) {
      const std::vector<std::string> names(fields_.begin(), fields_.end());
      check_header(names, '\t', window_.file());
      map_ = resolve_columns(names, options, window_.file());
    } else {
      first_is_row_ = true;
      map_ = resolve_columns(numbered_columns(fields_.size()), options, window_.file());
    }
  }

  bool next(Row& row) override {
    row = Row{.line = first_is_row_ ? 1 : window_.line()};
    if (first_is_row_) {
      first_is_row_ = false;
    } else if (!read_fields()) {
      return false;
    }
    row.text = fields_[map_.text];
    if (map_.text_pair) row.text_pair = fields_[*map_.text_pair];
    if (map_.label) row.label = fields_[*map_.label];
    return true;
  }
  uint64_t passed() const override { return window_.line(); }
  uint64_t bytes_read() const override { return window_.stored_bytes(); }
  const Columns& columns() const override { return map_.names; }

 private:
  void split() {
    fields_.clear();
    for (std::string_view rest = line_;;) {
      const size_t tab = rest.find('\t');
      fields_.push_back(rest.substr(0, tab));
      if (tab == std::string_view::npos) return;
      rest.remove_prefix(tab + 1);
      check_column_limit(fields_.size(), window_.line() - 1, window_.file());
    }
  }

  bool read_fields() {
    const uint64_t number = window_.line();
    if (!window_.next_line(line_)) return false;
    if (line_.empty() && map_.count > 1) {
      // Editors leave empty lines at the end of a file; anywhere else one is a broken row.
      while (line_.empty()) {
        if (!window_.next_line(line_)) return false;
      }
      line_ = {};
    }
    split();
    if (fields_.size() == map_.count) return true;
    fail(ErrorKind::kInput, "{}: line {}: {} column{}, expected {} as in line 1", window_.file(),
         number, fields_.size(), fields_.size() == 1 ? "" : "s", map_.count);
  }

  TextWindow window_;
  ColumnMap map_;
  std::string_view line_;
  std::vector<std::string_view> fields_;
  bool first_is_row_ = false;
};

}  // namespace

std::unique_ptr<RowReader> tsv_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<TsvReader>(std::move(window), options);
}

}  // namespace snug
