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

  JsonLines lines_;
  LabelNeed labels_;
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
    default:
      lines_.refuse("\"{}\" is {}, expected a label", key, type_name(*value));
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
