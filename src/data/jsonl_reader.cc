// Texts and labels from JSON Lines.
#include <cmath>

#include "data/columns.h"
#include "data/json_lines.h"
#include "data/readers.h"

namespace snug {
namespace {

namespace dom = simdjson::dom;

class JsonlReader final : public RowReader {
 public:
  JsonlReader(TextWindow window, const RowReaderOptions& options)
      : lines_(std::move(window)),
        labels_(options.labels),
        separator_(options.label_separator),
        map_(resolve_columns(lines_.fields().names(), options, lines_.file())) {}

  bool next(Row& row) override {
    if (!lines_.next()) return false;
    row = Row{.line = lines_.line()};
    row.text = lines_.text(map_.names.text);
    if (map_.text_pair) row.text_pair = lines_.text(map_.names.text_pair);
    if (map_.label) row.label = label_of(map_.names.label);
    return true;
  }
  uint64_t passed() const override { return lines_.passed(); }
  uint64_t bytes_read() const override { return lines_.stored_bytes(); }
  const Columns& columns() const override { return map_.names; }

 private:
  std::optional<std::string_view> label_of(std::string_view key);
  std::string_view joined(std::string_view key, dom::array labels);

  JsonLines lines_;
  LabelNeed labels_;
  char separator_;
  ColumnMap map_;
  std::string label_;  // storage for labels that are not strings
};

std::optional<std::string_view> JsonlReader::label_of(std::string_view key) {
  const dom::element* value = lines_.fields().find(key);
  if (value == nullptr || value->is_null()) {
    if (labels_ == LabelNeed::kOptional) return std::nullopt;
    lines_.refuse("\"{}\" is {}, expected a label", key, value ? "null" : "missing");
  }
  switch (value->type()) {
    case dom::element_type::STRING:
      return value->get_string().value_unsafe();
    case dom::element_type::BOOL:
      return value->get_bool().value_unsafe() ? "true" : "false";
    case dom::element_type::INT64:
    case dom::element_type::UINT64:
      label_ = integer_text(*value);
      return label_;
    case dom::element_type::DOUBLE:
      break;
    case dom::element_type::ARRAY:
      if (separator_ != 0) return joined(key, dom::array(*value));
      [[fallthrough]];
    default:
      lines_.refuse("\"{}\" is {}, expected a label", key, type_name(*value));
  }
  // 1.0 stays recognisable as a number with a fraction.
  const double number = double(*value);
  label_ = fmt::to_string(number);
  if (std::floor(number) == number && label_.find_first_of(".e") == label_.npos) label_ += ".0";
  return label_;
}

std::string_view JsonlReader::joined(std::string_view key, dom::array labels) {
  label_.clear();
  for (const dom::element label : labels) {
    const std::string text =
        label.is_string() ? std::string(label.get_string().value_unsafe()) : integer_text(label);
    if (text.empty() && !label.is_string()) {
      lines_.refuse("\"{}\" holds {}, expected labels", key, type_name(label));
    }
    if (text.empty() || text.find(separator_) != text.npos) {
      lines_.refuse(
          "\"{}\" holds the label \"{}\"; a label is not empty and has no '{}', which separates "
          "labels",
          key, std::string_view(text).substr(0, 60), separator_);
    }
    if (!label_.empty()) label_ += separator_;
    label_ += text;
  }
  return label_;
}

}  // namespace

std::unique_ptr<RowReader> jsonl_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<JsonlReader>(std::move(window), options);
}

}  // namespace snug
