#include "text/json_fields.h"

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

// The value as it stands in the file, but not pages of it.
std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kLongest = 60;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string_view origin, std::string path)
    : object_(object), origin_(origin), path_(std::move(path)) {
  if (object.is_object()) return;
  fail(ErrorKind::kInput, "{}: {} must be an object, found {}", origin,
       path_.empty() ? "the document" : path_, shown(object));
}

const Json* JsonFields::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonFields::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    fail(ErrorKind::kInput, "{}: unsupported field {}", origin_, name(key));
  }
}

const Json& JsonFields::at(std::string_view key) const {
  const auto it = object_.find(key);
  if (it == object_.end()) fail(ErrorKind::kInput, "{}: {} is missing", origin_, name(key));
  return *it;
}

JsonFields JsonFields::object(std::string_view key) const {
  return JsonFields(at(key), origin_, name(key));
}

const Json& JsonFields::array(std::string_view key) const {
  if (!at(key).is_array()) refuse(key, "a list");
  return at(key);
}

std::string JsonFields::text(std::string_view key) const {
  if (!at(key).is_string()) refuse(key, "a string");
  return at(key).get<std::string>();
}

bool JsonFields::boolean(std::string_view key) const {
  if (!at(key).is_boolean()) refuse(key, "true or false");
  return at(key).get<bool>();
}

bool JsonFields::boolean_or(std::string_view key, bool otherwise) const {
  return has(key) ? boolean(key) : otherwise;
}

int64_t JsonFields::integer(std::string_view key, int64_t low, int64_t high) const {
  const Json& value = at(key);
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(high)
                        : value.is_number_integer() && value.get<int64_t>() <= high;
  if (!fits || value.get<int64_t>() < low) {
    refuse(key, fmt::format("an integer from {} to {}", low, high));
  }
  return value.get<int64_t>();
}

std::string JsonFields::name(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void JsonFields::refuse(std::string_view key, std::string_view expected) const {
  fail(ErrorKind::kInput, "{}: {} must be {}, found {}", origin_, name(key), expected,
       shown(at(key)));
}

}  // namespace snug
