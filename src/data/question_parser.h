// A question with its answers as JSON has them: nested under paragraphs (SQuAD), or a flat row.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/code_point_index.h"
#include "data/json_value.h"
#include "data/row_reader.h"

namespace snug {

class QuestionParser {
 public:
  // `columns` are the keys of question, context and answers; an empty third: there are none.
  QuestionParser(Columns columns, LabelNeed labels)
      : columns_(std::move(columns)), labels_(labels) {}

  // Where the next texts stand, for messages: "x.json: line 3".
  void set_place(std::string place) { place_ = std::move(place); }
  // The context that the next questions ask about: that of the object.
  void read_context(const JsonFields& fields);
  // Sets text, second text, answers and id of `row`, which live as long as the JSON and until the
  // next call.
  void read_question(const JsonFields& fields, Row& row);

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kInput, "{}: {}{}", place_,
         id_.empty() ? std::string() : fmt::format("question \"{}\": ", id_),
         fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string_view text_of(const JsonFields& fields, std::string_view key) const;
  void read_id(const JsonFields& fields);
  void read_answers(const JsonFields& fields);
  void read_columns_of_answers(simdjson::dom::object object);
  void read_list_of_answers(simdjson::dom::array array);
  void add_answer(simdjson::dom::element text, simdjson::dom::element start);

  Columns columns_;
  LabelNeed labels_;
  std::string place_, id_;
  std::string_view context_;
  CodePointIndex code_points_;
  bool indexed_ = false;  // code_points_ are those of context_
  JsonFields answer_;
  std::vector<Answer> answers_;
};

}  // namespace snug
