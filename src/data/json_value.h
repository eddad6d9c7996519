// What readers of JSON share: parsing a record (simdjson's DOM), the members of an object, and what
// is wrong in words. A record is parsed whole, not only the fields that are wanted, so that a file
// is good or bad independently of the columns asked for.
#pragma once

#include <simdjson.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

class JsonParser {
 public:
  static constexpr size_t kMaxDepth = 64;

  // `bytes` lie in a TextWindow, whose padding simdjson reads. `value` lives until the next call.
  simdjson::error_code parse(std::string_view bytes, simdjson::dom::element& value);

 private:
  void fit(size_t bytes);

  simdjson::dom::parser parser_;
  size_t capacity_ = 0;
};

// The members of an object by name.
class JsonFields {
 public:
  // The name that appears twice, where one does.
  std::optional<std::string_view> read(simdjson::dom::object object);
  const simdjson::dom::element* find(std::string_view key) const;  // null where there is none
  std::vector<std::string> names() const;

 private:
  std::vector<simdjson::dom::key_value_pair> fields_;
  std::vector<std::string_view> keys_;
};

// "a list", "null", ...
std::string_view type_name(simdjson::dom::element value);

// The integer as text, empty where the value is none.
std::string integer_text(simdjson::dom::element value);

// Why a value does not parse.
std::string json_problem(simdjson::error_code error);

}  // namespace snug
