#include "core/json.h"

#include <set>
#include <vector>

#include "core/error.h"

namespace snug {
namespace {

constexpr size_t kMaxDepth = 64;

// Builds the document through nlohmann's DOM callbacks while watching depth and keys. Depth is
// refused before the recursive destructor could meet it.
class StrictHandler : public nlohmann::json_sax<Json> {
 public:
  StrictHandler(Json& root, std::string_view origin) : builder_(root, true), origin_(origin) {}

  bool null() override { return builder_.null(); }
  bool boolean(bool value) override { return builder_.boolean(value); }
  bool number_integer(number_integer_t value) override { return builder_.number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return builder_.number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return builder_.number_float(value, text);
  }
  bool string(string_t& value) override { return builder_.string(value); }
  bool binary(binary_t& value) override { return builder_.binary(value); }
  bool start_object(size_t count) override {
    enter();
    keys_.emplace_back();
    return builder_.start_object(count);
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      fail(ErrorKind::kInput, "{}: duplicate key \"{}\"", origin_, name);
    }
    return builder_.key(name);
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return builder_.end_object();
  }
  bool start_array(size_t count) override {
    enter();
    return builder_.start_array(count);
  }
  bool end_array() override {
    --depth_;
    return builder_.end_array();
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string reason = error.what();
    if (const size_t cut = reason.find("] "); cut != std::string::npos) {
      reason = reason.substr(cut + 2);
    }
    fail(ErrorKind::kInput, "{}: not valid JSON at byte {}: {}", origin_, position,
         reason.substr(0, 200));
  }

 private:
  void enter() {
    if (++depth_ > kMaxDepth) {
      fail(ErrorKind::kInput, "{}: JSON nested deeper than {}", origin_, kMaxDepth);
    }
  }

  nlohmann::detail::json_sax_dom_parser<Json> builder_;
  std::string_view origin_;
  std::vector<std::set<std::string>> keys_;
  size_t depth_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view origin) {
  // The library takes a NUL for the end of its input, so what follows one would go unread.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail(ErrorKind::kInput, "{}: not valid JSON at byte {}: a NUL", origin, nul);
  }
  Json root;
  StrictHandler handler(root, origin);
  Json::sax_parse(text.begin(), text.end(), &handler);
  return root;
}

}  // namespace snug
