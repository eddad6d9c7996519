#include "data/json_value.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "data/text_window.h"

namespace snug {

namespace dom = simdjson::dom;

static_assert(TextWindow::kPadding >= simdjson::SIMDJSON_PADDING);

// The parser takes 14 times its capacity. It grows ahead of the records (simdjson on its own would
// reallocate for every record that is a bit longer) and is dropped after a giant one.
void JsonParser::fit(size_t bytes) {
  constexpr size_t kOrdinary = 64 << 10;
  if (capacity_ > kOrdinary && bytes <= kOrdinary) {
    parser_ = dom::parser();
    capacity_ = 0;
  }
  if (bytes <= capacity_) return;
  capacity_ = bytes <= kOrdinary ? std::bit_ceil(std::max<size_t>(bytes, 4096)) : bytes + bytes / 8;
  if (parser_.allocate(capacity_, kMaxDepth) != simdjson::SUCCESS) throw std::bad_alloc();
}

simdjson::error_code JsonParser::parse(std::string_view bytes, dom::element& value) {
  fit(bytes.size());
  const auto error =
      parser_.parse(bytes.data(), bytes.size(), /*realloc_if_needed=*/false).get(value);
  if (error == simdjson::MEMALLOC) throw std::bad_alloc();
  return error;
}

std::optional<std::string_view> JsonFields::read(dom::object object) {
  fields_.clear();
  keys_.clear();
  for (const dom::key_value_pair field : object) {
    fields_.push_back(field);
    keys_.push_back(field.key);
  }
  std::ranges::sort(keys_);
  const auto twice = std::ranges::adjacent_find(keys_);
  return twice == keys_.end() ? std::nullopt : std::optional(*twice);
}

const dom::element* JsonFields::find(std::string_view key) const {
  const auto field = std::ranges::find(fields_, key, &dom::key_value_pair::key);
  return field == fields_.end() ? nullptr : &field->value;
}

std::vector<std::string> JsonFields::names() const {
  std::vector<std::string> names;
  for (const auto& field : fields_) names.emplace_back(field.key);
  return names;
}

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

std::string integer_text(dom::element value) {
  if (value.is_int64()) return fmt::to_string(int64_t(value));
  if (value.is_uint64()) return fmt::to_string(uint64_t(value));
  return {};
}

std::string json_problem(simdjson::error_code error) {
  if (error == simdjson::DEPTH_ERROR) {
    return fmt::format("nested deeper than {}", JsonParser::kMaxDepth);
  }
  if (error == simdjson::NUMBER_ERROR) return "a number that is malformed or out of range";
  if (error == simdjson::STRING_ERROR) return "a string with a bad escape or a lone surrogate";
  return fmt::format("not valid JSON ({})", simdjson::error_message(error));
}

}  // namespace snug
