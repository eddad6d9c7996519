#include "data/code_point_index.h"

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

bool begins_code_point(char byte) { return (uint8_t(byte) & 0xC0) != 0x80; }

}  // namespace

void CodePointIndex::reset(std::string_view text) {
  text_ = text;
  size_ = 0;
  marks_.clear();
  for (size_t at = 0; at < text.size(); ++at) {
    if (!begins_code_point(text[at])) continue;
    if (size_ % kStep == 0) marks_.push_back(at);
    ++size_;
  }
}

size_t CodePointIndex::byte_of(uint64_t code_point) const {
  SNUG_CHECK(code_point <= size_);
  if (code_point == size_) return text_.size();
  size_t at = marks_[code_point / kStep];
  for (uint64_t left = code_point % kStep; left > 0; --left) {
    do ++at;
    while (!begins_code_point(text_[at]));
  }
  return at;
}

uint64_t CodePointIndex::code_point_of(size_t byte) const {
  SNUG_CHECK(byte <= text_.size());
  const auto mark = std::ranges::upper_bound(marks_, byte);
  if (mark == marks_.begin()) return 0;
  const size_t begin = *(mark - 1);
  const std::string_view rest = text_.substr(begin, byte - begin);
  return uint64_t(mark - 1 - marks_.begin()) * kStep +
         uint64_t(std::ranges::count_if(rest, begins_code_point));
}

}  // namespace snug
