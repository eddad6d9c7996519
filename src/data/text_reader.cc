// Plain text: every line is a row, blank ones too, so that row numbers are line numbers.
#include "core/error.h"
#include "data/readers.h"

namespace snug {
namespace {

class TextReader final : public RowReader {
 public:
  TextReader(TextWindow window, const RowReaderOptions& options) : window_(std::move(window)) {
    if (options.labels == LabelNeed::kRequired) {
      fail(ErrorKind::kInput, "{}: plain text has no labels; expected .csv, .tsv or .jsonl",
           window_.file());
    }
  }

  bool next(Row& row) override {
    row = Row{.line = window_.line()};
    return window_.next_line(row.text);
  }
  uint64_t bytes_read() const override { return window_.stored_bytes(); }
  const Columns& columns() const override { return columns_; }

 private:
  TextWindow window_;
  Columns columns_{.text = "text"};
};

}  // namespace

std::unique_ptr<RowReader> text_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<TextReader>(std::move(window), options);
}

}  // namespace snug
