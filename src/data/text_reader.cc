// Plain text. Every line is a row, blank ones too, so that row numbers are line numbers; or the
// whole file is one document, in pieces that begin with white space: no tokenizer joins what stands
// before white space with what follows, so the pieces' tokens are the document's.
#include <algorithm>

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
  uint64_t passed() const override { return window_.line(); }
  uint64_t bytes_read() const override { return window_.stored_bytes(); }
  const Columns& columns() const override { return columns_; }

 private:
  TextWindow window_;
  Columns columns_{.text = "text"};
};

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

class DocumentReader final : public RowReader {
 public:
  explicit DocumentReader(TextWindow window) : window_(std::move(window)) {}

  bool next(Row& row) override {
    bool ended = false;
    size_t wanted = kPieceBytes, cut = 0;
    for (;;) {
      while (!ended && window_.size() <= wanted) ended = window_.fill() == TextWindow::Fill::kEnd;
      if (ended && window_.size() <= wanted) {
        cut = window_.size();
        break;
      }
      cut = last_cut(wanted);
      if (cut > 0) break;
      if (wanted >= kMostBytes) {  // no white space for so long: anywhere between two characters
        cut = wanted;
        while (cut > 1 && (uint8_t(window_.data()[cut]) & 0xC0) == 0x80) --cut;
        break;
      }
      wanted *= 2;
    }
    if (cut == 0) return false;
    row = Row{.text = {window_.data(), cut}, .line = window_.line()};
    row.continues = !(ended && cut == window_.size());
    check_utf8(row.text, '\n', row.line, window_.file());
    if (row.text.find('\0') != std::string_view::npos) {
      fail(ErrorKind::kInput, "{}: holds zero bytes behind line {}: it is no text file",
           window_.file(), row.line);
    }
    window_.consume(cut, uint64_t(std::ranges::count(row.text, '\n')));
    return true;
  }
  uint64_t passed() const override { return window_.line(); }
  uint64_t bytes_read() const override { return window_.stored_bytes(); }
  const Columns& columns() const override { return columns_; }

 private:
  static constexpr size_t kPieceBytes = 64 << 10, kMostBytes = 4 << 20;

  // The last place in the first `bytes` where white space begins; 0: none.
  size_t last_cut(size_t bytes) {
    const char* const text = window_.data();
    for (size_t at = bytes; at > 1; --at) {
      if (is_space(text[at - 1]) && !is_space(text[at - 2])) return at - 1;
    }
    return 0;
  }

  TextWindow window_;
  Columns columns_{.text = "text"};
};

}  // namespace

std::unique_ptr<RowReader> text_reader(TextWindow window, const RowReaderOptions& options) {
  if (options.documents) return std::make_unique<DocumentReader>(std::move(window));
  return std::make_unique<TextReader>(std::move(window), options);
}

}  // namespace snug
