#include "text/text_cut.h"

namespace snug {
namespace {

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

}  // namespace

size_t find_plain_space(std::string_view text, size_t from) {
  for (size_t pos = text.find(' ', from); pos != std::string_view::npos && pos + 1 < text.size();
       pos = text.find(' ', pos + 1)) {
    if (is_plain(text[pos - 1]) && is_plain(text[pos + 1])) return pos;
  }
  return text.size();
}

}  // namespace snug
