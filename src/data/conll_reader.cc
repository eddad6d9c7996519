// Words in columns, as CoNLL's shared tasks and most taggers write them: a word a line, its tag in
// another column, a blank line after each sentence. The first line that holds a word decides what
// separates columns and how many there are.
#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/columns.h"
#include "data/readers.h"
#include "data/word_row.h"

namespace snug {
namespace {

constexpr std::string_view kSpace = " \t\r\f\v";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(kSpace) == std::string_view::npos;
}

// "-DOCSTART- -X- O O" opens each document of CoNLL-2003.
bool opens_document(std::string_view line) {
  constexpr std::string_view kMark = "-DOCSTART-";
  return line.starts_with(kMark) && is_blank(line.substr(kMark.size(), 1));
}

// CoNLL-U's "# text = ...": its columns are separated by tabs, so such a line has only one. A word
// "#" has a tag behind it.
bool is_comment(std::string_view line) {
  return line.starts_with("# ") && line.find('\t') == line.npos;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

class ConllReader final : public RowReader {
 public:
  ConllReader(TextWindow window, const RowReaderOptions& options)
      : window_(std::move(window)), labels_(options.labels) {
    separator_ = find_separator();
    Line line = Line::kComment;
    while (line == Line::kComment || line == Line::kBreak) line = read_line();
    if (line == Line::kEnd) fail(ErrorKind::kInput, "{}: no words", window_.file());
    pending_ = true;
    resolve(options);
  }

  bool next(Row& row) override {
    while (inside_ && is_inside(read_line())) {  // the rest of a sentence that was wrong
    }
    sentence_.clear();
    uint64_t first_line = 0;
    for (inside_ = true;;) {
      const Line line = pending_ ? Line::kWord : read_line();
      pending_ = false;
      if (line == Line::kWord) {
        if (sentence_.empty()) first_line = line_number_;
        add_word(first_line);
      } else if (line != Line::kComment && !sentence_.empty()) {
        break;
      } else if (line == Line::kEnd) {
        inside_ = false;
        return false;
      }
    }
    inside_ = false;
    row = Row{.line = first_line};
    sentence_.finish(row);
    return true;
  }
  uint64_t passed() const override { return window_.line(); }
  uint64_t bytes_read() const override { return window_.stored_bytes(); }
  const Columns& columns() const override { return map_.names; }

 private:
  enum class Line { kWord, kBreak, kComment, kEnd };
  static bool is_inside(Line line) { return line == Line::kWord || line == Line::kComment; }

  char find_separator();
  void resolve(const RowReaderOptions& options);
  Line read_line();
  void split(std::string_view line);
  void add_word(uint64_t first_line);

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kInput, "{}: line {}: {}", window_.file(), line_number_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  TextWindow window_;
  LabelNeed labels_;
  ColumnMap map_;
  char separator_ = ' ';  // ' ': any run of spaces and tabs
  std::vector<std::string_view> fields_;
  WordRow sentence_;
  uint64_t line_number_ = 0, decided_at_ = 0;
  bool pending_ = false;  // the first word, read for its columns
  bool inside_ = false;   // a sentence has begun and not ended
};

// Looks ahead without leaving anything: what is a comment depends on the answer.
char ConllReader::find_separator() {
  const char line_break = window_.line_break();
  for (size_t begin = 0, end = 0;;) {
    const void* found = std::memchr(window_.data() + end, line_break, window_.size() - end);
    end = found ? size_t(static_cast<const char*>(found) - window_.data()) : window_.size();
    if (!found && window_.fill() == TextWindow::Fill::kMore) continue;
    const std::string_view line(window_.data() + begin, end - begin);
    if (!is_blank(line) && !opens_document(line) && !is_comment(line)) {
      return trimmed(line).find('\t') != line.npos ? '\t' : ' ';
    }
    if (!found) return ' ';
    begin = end = end + 1;
  }
}

void ConllReader::resolve(const RowReaderOptions& options) {
  const size_t count = fields_.size();
  decided_at_ = line_number_;
  if (count == 1 && labels_ == LabelNeed::kRequired) {
    refuse("one column, \"{}\"; expected a word and its tag, separated by spaces or tabs",
           fields_[0].substr(0, 60));
  }
  RowReaderOptions numbered = options;
  numbered.has_header = false;
  if (numbered.columns.text.empty()) numbered.columns.text = "#1";
  if (count == 1) {
    numbered.labels = LabelNeed::kIgnored;
  } else if (numbered.columns.label.empty()) {
    numbered.columns.label = fmt::format("#{}", count);
  }
  map_ = resolve_columns(numbered_columns(count), numbered, window_.file());
}

ConllReader::Line ConllReader::read_line() {
  line_number_ = window_.line();
  std::string_view line;
  if (!window_.next_line(line)) return Line::kEnd;
  if (is_blank(line) || opens_document(line)) return Line::kBreak;
  if (separator_ == '\t' && is_comment(line)) return Line::kComment;
  split(line);
  return Line::kWord;
}

void ConllReader::split(std::string_view line) {
  fields_.clear();
  line = line.substr(0, line.find_last_not_of(kSpace) + 1);
  const std::string_view separators = separator_ == '\t' ? "\t" : kSpace;
  for (;;) {
    if (separator_ == ' ') line.remove_prefix(line.find_first_not_of(kSpace));
    const size_t end = line.find_first_of(separators);
    fields_.push_back(trimmed(line.substr(0, end)));
    if (end == line.npos) return;
    check_column_limit(fields_.size(), line_number_, window_.file());
    line.remove_prefix(end + 1);
  }
}

void ConllReader::add_word(uint64_t first_line) {
  const bool untagged = fields_.size() == 1 && labels_ != LabelNeed::kRequired && map_.text == 0;
  if (fields_.size() != map_.count && !untagged) {
    refuse("{} column{}, expected {} as in line {}, separated by {}", fields_.size(),
           fields_.size() == 1 ? "" : "s", map_.count, decided_at_,
           separator_ == '\t' ? "tabs" : "spaces");
  }
  const std::string_view word = fields_[map_.text];
  const std::string_view label =
      map_.label && !untagged ? fields_[*map_.label] : std::string_view();
  if (word.empty()) refuse("the word is empty");
  if (label.empty() && labels_ == LabelNeed::kRequired) {
    refuse("word \"{}\" has no tag", word.substr(0, 60));
  }
  sentence_.add(word, label);
  if (sentence_.bytes() >= window_.max_record_bytes() || sentence_.size() > WordRow::kMaxWords) {
    refuse(
        "the sentence that begins at line {} has not ended after {} words; a blank line ends a "
        "sentence",
        first_line, sentence_.size());
  }
}

}  // namespace

std::unique_ptr<RowReader> conll_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<ConllReader>(std::move(window), options);
}

}  // namespace snug
