#include "data/json_scanner.h"

#include <algorithm>

namespace snug {

bool JsonScanner::has_byte(size_t at) {
  while (at >= window_.size()) {
    if (window_.fill() != TextWindow::Fill::kMore) return false;
  }
  return true;
}

void JsonScanner::take(size_t bytes) {
  const std::string_view taken(window_.data(), bytes);
  const uint64_t breaks = uint64_t(std::ranges::count(taken, kLineBreak));
  byte_ = breaks == 0 ? byte_ + bytes : bytes - taken.rfind(kLineBreak);
  window_.consume(bytes, breaks);
}

int JsonScanner::peek() {
  size_t at = 0;
  while (has_byte(at)) {
    const char c = window_.data()[at];
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
      take(at);
      return uint8_t(c);
    }
    // A stretch of white space may be longer than a record.
    if (++at == window_.size()) {
      take(at);
      at = 0;
    }
  }
  return -1;
}

void JsonScanner::refuse_here(std::string_view expected) {
  const int next = peek();
  if (next < 0) {
    fail(ErrorKind::kInput, "{}: line {}, byte {}: the file ends, expected {}; was it cut off?",
         file(), window_.line(), byte_, expected);
  }
  const std::string found = next == '['                  ? "a list"
                            : next == '{'                ? "an object"
                            : next == '"'                ? "a string"
                            : next > 0x20 && next < 0x7F ? fmt::format("'{}'", char(next))
                                                         : fmt::format("0x{:02x}", next);
  fail(ErrorKind::kInput, "{}: line {}, byte {}: {}, expected {}", file(), window_.line(), byte_,
       found, expected);
}

void JsonScanner::enter(char bracket, std::string_view expected) {
  if (peek() != bracket) refuse_here(expected);
  take(1);
  levels_.push_back({.close = bracket == '{' ? '}' : ']'});
}

bool JsonScanner::next_item() {
  SNUG_CHECK(!levels_.empty());
  Level& level = levels_.back();
  const int next = peek();
  if (next == level.close) {
    take(1);
    levels_.pop_back();
    return false;
  }
  if (!level.first) {
    if (next != ',') refuse_here(level.close == '}' ? "',' or '}'" : "',' or ']'");
    take(1);
  }
  level.first = false;
  return true;
}

bool JsonScanner::next_key(std::string& key) {
  if (!next_item()) return false;
  if (peek() != '"') refuse_here("a key in quotes");
  key = value().get_string().value_unsafe();
  if (peek() != ':') {
    refuse_here(fmt::format("':' after \"{}\"", std::string_view(key).substr(0, 60)));
  }
  take(1);
  return true;
}

// How many bytes the value at the front of the window has. Only brackets and quotes are looked at:
// the parser does the rest.
size_t JsonScanner::value_end() {
  size_t at = 0, depth = 0;
  bool in_string = false, escaped = false;
  while (has_byte(at)) {
    const char* const data = window_.data();
    for (const size_t size = window_.size(); at < size; ++at) {
      const char c = data[at];
      if (in_string) {
        if (escaped) {
          escaped = false;
        } else if (c == '\\') {
          escaped = true;
        } else if (c == '"') {
          in_string = false;
          if (depth == 0) return at + 1;
        }
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        if (depth == 0) return at;
        if (--depth == 0) return at + 1;
      } else if (depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
        return at;
      }
    }
  }
  if (depth > 0 || in_string || window_.size() >= window_.max_record_bytes()) refuse_unfinished();
  return at;
}

void JsonScanner::refuse_unfinished() {
  if (window_.size() < window_.max_record_bytes()) {
    fail(ErrorKind::kInput, "{}: the file ends inside the value that begins here; was it cut off?",
         place());
  }
  fail(ErrorKind::kInput,
       "{}: the value that begins here is not finished after {} bytes, the most it may have",
       place(), window_.max_record_bytes());
}

simdjson::dom::element JsonScanner::value() {
  peek();
  value_line_ = window_.line();
  value_byte_ = byte_;
  const size_t size = value_end();
  if (size == 0) refuse_here("a value");
  if (size >= window_.max_record_bytes()) refuse_unfinished();
  const std::string_view bytes(window_.data(), size);
  check_utf8(bytes, kLineBreak, value_line_, file(), value_byte_ - 1);
  simdjson::dom::element value;
  const simdjson::error_code error = parser_.parse(bytes, value);
  if (error != simdjson::SUCCESS) fail(ErrorKind::kInput, "{}: {}", place(), json_problem(error));
  take(size);
  return value;
}

void JsonScanner::finish() {
  SNUG_CHECK(levels_.empty());
  if (peek() >= 0) refuse_here("nothing more: the document has ended");
}

}  // namespace snug
