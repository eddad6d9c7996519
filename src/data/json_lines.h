// JSON Lines: one object a line, blank lines between them skipped.
#pragma once

#include "core/error.h"
#include "data/json_value.h"
#include "data/text_window.h"

namespace snug {

class JsonLines {
 public:
  // Reads the first object, whose keys are the columns; refuses a file without one.
  explicit JsonLines(TextWindow window);

  // The next object, the first one at the first call; false at the end.
  bool next();
  const JsonFields& fields() const { return fields_; }
  std::string_view text(std::string_view key) const;  // refused where it is no string

  uint64_t line() const { return line_number_; }
  uint64_t passed() const { return pending_ ? 0 : window_.line(); }
  const std::string& file() const { return window_.file(); }
  uint64_t stored_bytes() const { return window_.stored_bytes(); }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kInput, "{}: line {}: {}", file(), line_number_,
         fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  bool read_object();
  void parse(std::string_view line);

  TextWindow window_;
  JsonParser parser_;
  JsonFields fields_;
  uint64_t line_number_ = 0;
  bool pending_ = false;  // the first object, read for its keys
};

}  // namespace snug
