#include "data/question_parser.h"

namespace snug {
namespace {

namespace dom = simdjson::dom;

// At most 60 bytes, whole code points.
std::string shown(std::string_view text) {
  constexpr size_t kShown = 60;
  if (text.size() <= kShown) return fmt::format("\"{}\"", text);
  size_t end = kShown;
  while ((uint8_t(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("\"{}...\"", text.substr(0, end));
}

}  // namespace

std::string_view QuestionParser::text_of(const JsonFields& fields, std::string_view key) const {
  const dom::element* value = fields.find(key);
  if (value == nullptr) refuse("no \"{}\"; expected a string there", key);
  if (!value->is_string()) refuse("\"{}\" is {}, expected a string", key, type_name(*value));
  return value->get_string().value_unsafe();
}

void QuestionParser::read_context(const JsonFields& fields) {
  id_.clear();
  context_ = text_of(fields, columns_.text_pair);
  indexed_ = false;
}

void QuestionParser::read_question(const JsonFields& fields, Row& row) {
  read_id(fields);
  row.text = text_of(fields, columns_.text);
  row.text_pair = context_;
  answers_.clear();
  if (labels_ != LabelNeed::kIgnored && !columns_.label.empty()) read_answers(fields);
  row.answers = answers_;
  row.id = id_;
}

void QuestionParser::read_id(const JsonFields& fields) {
  id_.clear();
  const dom::element* id = fields.find("id");
  if (id == nullptr || id->is_null()) return;
  std::string text =
      id->is_string() ? std::string(id->get_string().value_unsafe()) : integer_text(*id);
  if (text.empty() && !id->is_string()) refuse("\"id\" is {}, expected a string", type_name(*id));
  id_ = std::move(text);
}

void QuestionParser::read_answers(const JsonFields& fields) {
  const dom::element* flag = fields.find("is_impossible");
  if (flag != nullptr && !flag->is_bool() && !flag->is_null()) {
    refuse("\"is_impossible\" is {}, expected true or false", type_name(*flag));
  }
  const bool flagged = flag != nullptr && flag->is_bool(),
             impossible = flagged && flag->get_bool().value_unsafe();
  const dom::element* answers = fields.find(columns_.label);
  if (answers == nullptr || answers->is_null()) {
    if (labels_ == LabelNeed::kOptional || impossible) return;
    refuse("no \"{}\"; expected a list of answers", columns_.label);
  }
  if (answers->is_array()) {
    read_list_of_answers(dom::array(*answers));
  } else if (answers->is_object()) {
    read_columns_of_answers(dom::object(*answers));
  } else {
    refuse("\"{}\" is {}, expected a list of answers", columns_.label, type_name(*answers));
  }
  if (impossible && !answers_.empty()) {
    refuse("\"is_impossible\" is true, but there is an answer, {}", shown(answers_[0].text));
  }
  if (flagged && !impossible && answers_.empty() && labels_ == LabelNeed::kRequired) {
    refuse("\"is_impossible\" is false, but there is no answer");
  }
}

// {"text": ["a", "b"], "answer_start": [0, 4]}
void QuestionParser::read_columns_of_answers(dom::object object) {
  if (const auto twice = answer_.read(object)) {
    refuse("key \"{}\" appears twice in an answer", *twice);
  }
  const dom::element* texts = answer_.find("text");
  const dom::element* starts = answer_.find("answer_start");
  if (texts == nullptr || starts == nullptr || !texts->is_array() || !starts->is_array()) {
    refuse("\"{}\" is an object; expected two lists in it, \"text\" and \"answer_start\"",
           columns_.label);
  }
  const dom::array text_list = dom::array(*texts), start_list = dom::array(*starts);
  if (text_list.size() != start_list.size()) {
    refuse("{} answers' texts, but {} of \"answer_start\"", text_list.size(), start_list.size());
  }
  auto start = start_list.begin();
  for (const dom::element text : text_list) {
    add_answer(text, *start);
    ++start;
  }
}

// [{"text": "a", "answer_start": 0}, ...]
void QuestionParser::read_list_of_answers(dom::array array) {
  for (const dom::element item : array) {
    if (!item.is_object()) refuse("an answer is {}, expected an object", type_name(item));
    if (const auto twice = answer_.read(dom::object(item))) {
      refuse("key \"{}\" appears twice in an answer", *twice);
    }
    const dom::element* text = answer_.find("text");
    const dom::element* start = answer_.find("answer_start");
    if (text == nullptr) refuse("an answer has no \"text\"");
    if (start == nullptr) refuse("an answer has no \"answer_start\"");
    add_answer(*text, *start);
  }
}

void QuestionParser::add_answer(dom::element text, dom::element start) {
  if (!text.is_string()) refuse("an answer's \"text\" is {}, expected a string", type_name(text));
  const std::string_view answer = text.get_string().value_unsafe();
  if (!start.is_uint64()) {
    const std::string number = integer_text(start);
    refuse("\"answer_start\" is {}, expected a number of code points",
           number.empty() ? type_name(start) : number);
  }
  const uint64_t begin = start.get_uint64().value_unsafe();
  if (answer.empty()) {
    refuse("an answer's \"text\" is empty; a question without an answer has an empty list");
  }
  if (!indexed_) code_points_.reset(context_);
  indexed_ = true;
  const std::string_view there = begin < code_points_.size()
                                     ? context_.substr(code_points_.byte_of(begin))
                                     : std::string_view();
  if (!there.starts_with(answer)) {
    const size_t found = context_.find(answer);
    refuse("answer {} is not at \"answer_start\" {}: {}; {} (it counts code points from 0)",
           shown(answer), begin,
           there.empty() ? fmt::format("the context has {} code points", code_points_.size())
                         : fmt::format("there is {}", shown(there.substr(0, answer.size() + 3))),
           found == context_.npos
               ? std::string("the context does not have it")
               : fmt::format("the first one is at {}", code_points_.code_point_of(found)));
  }
  answers_.push_back({.text = answer, .begin = begin});
}

}  // namespace snug
