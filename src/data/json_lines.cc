#include "data/json_lines.h"

namespace snug {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// Where the first bracketed value of `line` ends, or npos when it does not.
size_t first_value_end(std::string_view line) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// What is wrong with a line that begins with '{' and does not parse.
std::string line_problem(std::string_view line, simdjson::error_code error) {
  if (error == simdjson::DEPTH_ERROR || error == simdjson::NUMBER_ERROR ||
      error == simdjson::STRING_ERROR) {
    return json_problem(error);
  }
  const size_t end = first_value_end(line);
  if (end == line.npos) {
    return "the object does not end on this line; was the file cut off, or is it not one object a "
           "line?";
  }
  const size_t second = line.find_first_not_of(kSpace, end);
  if (second == line.npos) return json_problem(error);
  return fmt::format("more after the object, at byte {}; expected one object a line", second + 1);
}

}  // namespace

JsonLines::JsonLines(TextWindow window) : window_(std::move(window)) {
  pending_ = read_object();
  if (!pending_) fail(ErrorKind::kInput, "{}: no rows", file());
}

bool JsonLines::next() {
  if (pending_) {
    pending_ = false;
    return true;
  }
  return read_object();
}

bool JsonLines::read_object() {
  std::string_view line;
  do {
    line_number_ = window_.line();
    if (!window_.next_line(line)) return false;
  } while (line.find_first_not_of(kSpace) == std::string_view::npos);
  parse(line);
  return true;
}

void JsonLines::parse(std::string_view line) {
  const char first = line[line.find_first_not_of(kSpace)];
  if (first == '[') {
    refuse("a JSON array; expected JSON Lines: one object a line, no enclosing list");
  }
  if (first != '{') refuse("begins with '{}'; expected a JSON object", first);
  simdjson::dom::element value;
  const simdjson::error_code error = parser_.parse(line, value);
  if (error != simdjson::SUCCESS) refuse("{}", line_problem(line, error));
  if (const auto twice = fields_.read(simdjson::dom::object(value))) {
    refuse("key \"{}\" appears twice", *twice);
  }
}

std::string_view JsonLines::text(std::string_view key) const {
  const simdjson::dom::element* value = fields_.find(key);
  if (value == nullptr) refuse("no \"{}\"; expected a string there", key);
  if (!value->is_string()) refuse("\"{}\" is {}, expected a string", key, type_name(*value));
  return value->get_string().value_unsafe();
}

}  // namespace snug
