// Questions from SQuAD's JSON, 1.1 and 2.0: {"data": [{"title": ..., "paragraphs": [{"context":
// ..., "qas": [{"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}],
// "is_impossible": ...}]}]}]}. The file is one value, so it is walked through, and only a paragraph
// at a time is in memory; the order of keys does not matter.
#include "data/json_scanner.h"
#include "data/question_parser.h"
#include "data/readers.h"

namespace snug {
namespace {

namespace dom = simdjson::dom;

// The keys, which may be named otherwise.
Columns keys_of(const RowReaderOptions& options) {
  const auto or_usual = [](const std::string& name, const char* usual) {
    return name.empty() ? usual : name;
  };
  return {.text = or_usual(options.columns.text, "question"),
          .text_pair = or_usual(options.columns.text_pair, "context"),
          .label = options.labels == LabelNeed::kIgnored
                       ? ""
                       : or_usual(options.columns.label, "answers")};
}

class SquadReader final : public RowReader {
 public:
  SquadReader(TextWindow window, const RowReaderOptions& options)
      : scanner_(std::move(window)), keys_(keys_of(options)), parser_(keys_, options.labels) {
    if (keys_.text_pair == "-") {
      fail(ErrorKind::kInput, "{}: a question needs a context", scanner_.file());
    }
    scanner_.enter('{',
                   "SQuAD's object with \"data\" (rows, one object a line, are read from .jsonl)");
  }

  bool next(Row& row) override {
    while (question_ == questions_.size()) {
      if (!next_paragraph()) return false;
    }
    const dom::element question = questions_[question_++];
    ++passed_;
    if (!question.is_object()) {
      refuse("item {} of \"qas\" is {}, expected an object", question_, type_name(question));
    }
    if (const auto twice = fields_.read(dom::object(question))) {
      refuse("item {} of \"qas\": key \"{}\" appears twice", question_, *twice);
    }
    row = Row{.line = scanner_.value_line()};
    parser_.read_question(fields_, row);
    any_ = true;
    return true;
  }
  uint64_t passed() const override { return passed_; }
  uint64_t bytes_read() const override { return scanner_.stored_bytes(); }
  const Columns& columns() const override { return keys_; }

 private:
  enum class Level { kTop, kArticles, kArticle, kParagraphs, kEnd };

  bool next_paragraph();
  void step_top();
  void step_article();
  void read_paragraph();

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kInput, "{}: {}", scanner_.place(),
         fmt::format(format, std::forward<Args>(args)...));
  }

  JsonScanner scanner_;
  Columns keys_;
  QuestionParser parser_;
  Level level_ = Level::kTop;
  bool has_data_ = false, has_paragraphs_ = false, any_ = false;
  uint64_t articles_ = 0, passed_ = 0;  // passed_: paragraphs and questions
  std::string key_;
  JsonFields fields_;
  std::vector<dom::element> questions_;  // of the paragraph
  size_t question_ = 0;                  // the next of them
};

bool SquadReader::next_paragraph() {
  for (;;) {
    switch (level_) {
      case Level::kTop:
        step_top();
        break;
      case Level::kArticles:
        level_ = scanner_.next_element() ? Level::kArticle : Level::kTop;
        if (level_ == Level::kTop) break;
        scanner_.enter('{', "an article: an object with \"paragraphs\"");
        ++articles_;
        has_paragraphs_ = false;
        break;
      case Level::kArticle:
        step_article();
        break;
      case Level::kParagraphs:
        if (scanner_.next_element()) {
          read_paragraph();
          return true;
        }
        level_ = Level::kArticle;
        break;
      case Level::kEnd:
        return false;
    }
  }
}

void SquadReader::step_top() {
  if (!scanner_.next_key(key_)) {
    scanner_.finish();
    if (!has_data_) {
      fail(ErrorKind::kInput,
           "{}: no \"data\" in the object; expected SQuAD's (rows, one object a line, are read "
           "from .jsonl)",
           scanner_.file());
    }
    if (!any_) fail(ErrorKind::kInput, "{}: no questions", scanner_.file());
    level_ = Level::kEnd;
  } else if (key_ != "data") {
    scanner_.value();
  } else {
    if (has_data_) refuse("key \"data\" appears twice");
    has_data_ = true;
    scanner_.enter('[', "a list of articles as \"data\"");
    level_ = Level::kArticles;
  }
}

void SquadReader::step_article() {
  if (!scanner_.next_key(key_)) {
    if (!has_paragraphs_) {
      fail(ErrorKind::kInput, "{}: article {} has no \"paragraphs\"", scanner_.file(), articles_);
    }
    level_ = Level::kArticles;
  } else if (key_ != "paragraphs") {
    scanner_.value();
  } else {
    if (has_paragraphs_) refuse("key \"paragraphs\" appears twice in article {}", articles_);
    has_paragraphs_ = true;
    scanner_.enter('[', "a list as \"paragraphs\"");
    level_ = Level::kParagraphs;
  }
}

void SquadReader::read_paragraph() {
  questions_.clear();
  question_ = 0;
  const dom::element paragraph = scanner_.value();
  ++passed_;
  if (!paragraph.is_object()) refuse("{}, expected a paragraph: an object", type_name(paragraph));
  if (const auto twice = fields_.read(dom::object(paragraph))) {
    refuse("key \"{}\" appears twice in the paragraph", *twice);
  }
  parser_.set_place(scanner_.place());
  parser_.read_context(fields_);
  const dom::element* questions = fields_.find("qas");
  if (questions == nullptr) refuse("the paragraph has no \"qas\"");
  if (!questions->is_array()) refuse("\"qas\" is {}, expected a list", type_name(*questions));
  for (const dom::element question : dom::array(*questions)) questions_.push_back(question);
}

}  // namespace

std::unique_ptr<RowReader> squad_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<SquadReader>(std::move(window), options);
}

}  // namespace snug
