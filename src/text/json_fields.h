// Typed access to the fields of a small JSON object, where whatever is not understood is refused by
// its full path: a tokenizer that ignores a setting gives wrong ids without a word.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace snug {

class JsonFields {
 public:
  // `path` is where the object stands in the file, such as "model"; "" for the whole.
  JsonFields(const Json& object, std::string_view origin, std::string path);

  const Json& json() const { return object_; }
  bool has(std::string_view key) const { return object_.contains(key); }
  const Json* find(std::string_view key) const;  // nullptr: absent or null

  // Refuses any other key.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  const Json& at(std::string_view key) const;
  JsonFields object(std::string_view key) const;
  const Json& array(std::string_view key) const;
  std::string text(std::string_view key) const;
  bool boolean(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  std::string name(std::string_view key) const;  // full path of a field
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

 private:
  const Json& object_;
  std::string origin_, path_;
};

}  // namespace snug
