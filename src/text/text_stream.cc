#include "text/text_stream.h"

#include "text/unicode.h"

namespace snug {

std::string TextStream::push(int32_t id) {
  if (specials_ == Specials::kSkip && tokenizer_.is_special(id)) return "";
  const std::string bytes = tokenizer_.token_bytes(id, place_);
  if (bytes.empty()) return "";
  place_ = TextPlace::kInside;
  pending_ += bytes;
  const size_t certain = complete_utf8_length(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return text;
}

std::string TextStream::flush() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  place_ = TextPlace::kStart;
  return text;
}

}  // namespace snug
