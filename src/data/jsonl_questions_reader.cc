// Questions from JSON Lines, each row with its context: {"id": "1", "question": "...", "context":
// "...", "answers": {"text":
// ["..."], "answer_start": [17]}}.
#include "data/columns.h"
#include "data/json_lines.h"
#include "data/question_parser.h"
#include "data/readers.h"

namespace snug {
namespace {

class JsonlQuestionsReader final : public RowReader {
 public:
  JsonlQuestionsReader(TextWindow window, const RowReaderOptions& options)
      : lines_(std::move(window)),
        names_(resolve_columns(lines_.fields().names(), options, lines_.file()).names),
        parser_(names_, options.labels) {}

  bool next(Row& row) override {
    if (!lines_.next()) return false;
    row = Row{.line = lines_.line()};
    parser_.set_place(fmt::format("{}: line {}", lines_.file(), lines_.line()));
    parser_.read_context(lines_.fields());
    parser_.read_question(lines_.fields(), row);
    return true;
  }
  uint64_t passed() const override { return lines_.passed(); }
  uint64_t bytes_read() const override { return lines_.stored_bytes(); }
  const Columns& columns() const override { return names_; }

 private:
  JsonLines lines_;
  Columns names_;
  QuestionParser parser_;
};

}  // namespace

std::unique_ptr<RowReader> jsonl_questions_reader(TextWindow window,
                                                  const RowReaderOptions& options) {
  return std::make_unique<JsonlQuestionsReader>(std::move(window), options);
}

}  // namespace snug
