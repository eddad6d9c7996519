// A way through a JSON document that does not fit in memory: the caller steps into the containers
// it knows and takes every other value whole. What is not JSON is refused with line and byte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/json_value.h"
#include "data/text_window.h"

namespace snug {

class JsonScanner {
 public:
  explicit JsonScanner(TextWindow window) : window_(std::move(window)) {}

  // Steps into the object ('{') or list ('[') that must begin here; `expected` words the refusal
  // otherwise.
  void enter(char bracket, std::string_view expected);
  // Of the object entered last: the next key, behind which its value is; false at the object's end,
  // which it leaves.
  bool next_key(std::string& key);
  // Of the list entered last: whether there is another value; false at the list's end, which it
  // leaves.
  bool next_element() { return next_item(); }
  // The value here, which it passes. Lives until the next value or key.
  simdjson::dom::element value();
  // Behind the outermost container: refuses anything but white space.
  void finish();

  // "x.json: line 1, byte 77": where the value taken last begins.
  std::string place() const {
    return fmt::format("{}: line {}, byte {}", window_.file(), value_line_, value_byte_);
  }
  uint64_t value_line() const { return value_line_; }
  const std::string& file() const { return window_.file(); }
  uint64_t stored_bytes() const { return window_.stored_bytes(); }

 private:
  struct Level {
    char close;
    bool first = true;
  };

  bool has_byte(size_t at);
  int peek();  // the next byte that is no white space, which it passes; -1 at the end
  bool next_item();
  size_t value_end();
  void take(size_t bytes);
  [[noreturn]] void refuse_here(std::string_view expected);
  [[noreturn]] void refuse_unfinished();

  // To find out how lines end, a window would have to read a document of one line whole.
  static constexpr char kLineBreak = '\n';

  TextWindow window_;
  uint64_t byte_ = 1;  // 1-based, in its line, of the byte at window_.data()
  uint64_t value_line_ = 1, value_byte_ = 1;
  std::vector<Level> levels_;
  JsonParser parser_;
};

}  // namespace snug
