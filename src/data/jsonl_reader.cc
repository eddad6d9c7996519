// JSON Lines: one object a line. The whole line is parsed (simdjson's DOM), not only the fields
// that are wanted, so that a file is good or bad independently of the columns asked for.
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "data/columns.h"
#include "data/readers.h"

namespace snug {
namespace {

namespace dom = simdjson::dom;

static_assert(TextWindow::kPadding >= simdjson::SIMDJSON_PADDING);

constexpr size_t kMaxDepth = 64;
constexpr std::string_view kSpace = " \t\r\n";

std::string_view type_name(dom::element value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "a list";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// Where the first bracketed value of `line` ends, or npos when it does not.
size_t first_value_end(std::string_view line) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
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

// What is wrong with a line that begins with '{' and does not parse, in words.
std::string diagnose(std::string_view line, simdjson::error_code error) {
  if (error == simdjson::DEPTH_ERROR) return fmt::format("nested deeper than {}", kMaxDepth);
  if (error == simdjson::NUMBER_ERROR) return "a number that is malformed or out of range";
  if (error == simdjson::STRING_ERROR) return "a string with a bad escape or a lone surrogate";
  const size_t end = first_value_end(line);
  if (end == std::string_view::npos) {
    return "the object does not end on this line; was the file cut off, or is it not one object a "
           "line?";
  }
  const size_t second = line.find_first_not_of(kSpace, end);
  if (second != std::string_view::npos) {
    return fmt::format("more after the object, at byte {}; expected one object a line", second + 1);
  }
  return fmt::format("not valid JSON ({})", simdjson::error_message(error));
}

class JsonlReader final : public RowReader {
 public:
  JsonlReader(TextWindow window, const RowReaderOptions& options)
      : window_(std::move(window)), options_(options) {
    pending_ = read_object();
    if (!pending_) fail(ErrorKind::kInput, "{}: no rows", window_.file());
    std::vector<std::string> names;
    for (const auto& field : fields_) names.emplace_back(field.key);
    map_ = resolve_columns(names, options_, window_.file());
  }

  bool next(Row& row) override {
    if (!pending_ && !read_object()) return false;
    pending_ = false;
    row = Row{.line = line_number_};
    row.text = text_of(map_.names.text);
    if (map_.text_pair) row.text_pair = text_of(map_.names.text_pair);
    if (map_.label) row.label = label_of(map_.names.label);
    return true;
  }
  uint64_t bytes_read() const override { return window_.stored_bytes(); }
  const Columns& columns() const override { return map_.names; }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kInput, "{}: line {}: {}", window_.file(), line_number_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  bool read_object();
  void fit_parser(size_t bytes);
  void parse(std::string_view line);
  void refuse_duplicates();
  const dom::element* find(std::string_view key) const;
  std::string_view text_of(std::string_view key) const;
  std::optional<std::string_view> label_of(std::string_view key);

  TextWindow window_;
  RowReaderOptions options_;
  ColumnMap map_;
  dom::parser parser_;
  size_t parser_capacity_ = 0;
  std::vector<dom::key_value_pair> fields_;
  std::vector<std::string_view> keys_;
  std::string label_;  // storage for labels that are not strings
  uint64_t line_number_ = 0;
  bool pending_ = false;  // the first object, read for its keys
};

bool JsonlReader::read_object() {
  std::string_view line;
  do {
    line_number_ = window_.line();
    if (!window_.next_line(line)) return false;
  } while (line.find_first_not_of(kSpace) == std::string_view::npos);
  parse(line);
  return true;
}

// The parser takes 14 times its capacity. It grows ahead of the lines (simdjson on its own would
// reallocate for every line that is a bit longer) and is dropped after a giant one.
void JsonlReader::fit_parser(size_t bytes) {
  constexpr size_t kOrdinary = 64 << 10;
  if (parser_capacity_ > kOrdinary && bytes <= kOrdinary) {
    parser_ = dom::parser();
    parser_capacity_ = 0;
  }
  if (bytes <= parser_capacity_) return;
  parser_capacity_ =
      bytes <= kOrdinary ? std::bit_ceil(std::max<size_t>(bytes, 4096)) : bytes + bytes / 8;
  if (parser_.allocate(parser_capacity_, kMaxDepth) != simdjson::SUCCESS) throw std::bad_alloc();
}

void JsonlReader::parse(std::string_view line) {
  const char first = line[line.find_first_not_of(kSpace)];
  if (first == '[')
    refuse("a JSON array; expected JSON Lines: one object a line, no enclosing list");
  if (first != '{') refuse("begins with '{}'; expected a JSON object", first);
  fit_parser(line.size());
  // The window leaves the padding that simdjson wants after the line.
  dom::object object;
  const simdjson::error_code error =
      parser_.parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(object);
  if (error == simdjson::MEMALLOC) throw std::bad_alloc();
  if (error != simdjson::SUCCESS) refuse("{}", diagnose(line, error));
  fields_.clear();
  for (const dom::key_value_pair field : object) fields_.push_back(field);
  refuse_duplicates();
}

void JsonlReader::refuse_duplicates() {
  keys_.clear();
  for (const auto& field : fields_) keys_.push_back(field.key);
  std::ranges::sort(keys_);
  const auto twice = std::ranges::adjacent_find(keys_);
  if (twice != keys_.end()) refuse("key \"{}\" appears twice", *twice);
}

const dom::element* JsonlReader::find(std::string_view key) const {
  const auto field = std::ranges::find(fields_, key, &dom::key_value_pair::key);
  return field == fields_.end() ? nullptr : &field->value;
}

std::string_view JsonlReader::text_of(std::string_view key) const {
  const dom::element* value = find(key);
  if (value == nullptr) refuse("no \"{}\"; expected a string there", key);
  if (!value->is_string()) refuse("\"{}\" is {}, expected a string", key, type_name(*value));
  return value->get_string().value_unsafe();
}

std::optional<std::string_view> JsonlReader::label_of(std::string_view key) {
  const dom::element* value = find(key);
  if (value == nullptr || value->is_null()) {
    if (options_.labels == LabelNeed::kOptional) return std::nullopt;
    refuse("\"{}\" is {}, expected a label", key, value ? "null" : "missing");
  }
  switch (value->type()) {
    case dom::element_type::STRING:
      return value->get_string().value_unsafe();
    case dom::element_type::BOOL:
      return value->get_bool().value_unsafe() ? "true" : "false";
    case dom::element_type::INT64:
      label_ = fmt::to_string(int64_t(*value));
      return label_;
    case dom::element_type::UINT64:
      label_ = fmt::to_string(uint64_t(*value));
      return label_;
    case dom::element_type::DOUBLE:
      break;
    default:
      refuse("\"{}\" is {}, expected a label", key, type_name(*value));
  }
  // 1.0 stays recognisable as a number with a fraction.
  const double number = double(*value);
  label_ = fmt::to_string(number);
  if (std::floor(number) == number && label_.find_first_of(".e") == label_.npos) label_ += ".0";
  return label_;
}

}  // namespace

std::unique_ptr<RowReader> jsonl_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<JsonlReader>(std::move(window), options);
}

}  // namespace snug
