#include "text/gpt2_split.h"

namespace snug {

Gpt2Splitter::Gpt2Splitter(std::string_view text)
    : text_(text), ascii_(ascii_classes()), chars_(CharTable::get()) {}

Gpt2Splitter::Class Gpt2Splitter::class_of(uint16_t flags) {
  if (flags & kCharLetter) return Class::kLetter;
  if (flags & kCharNumber) return Class::kNumber;
  return flags & kCharSpace ? Class::kSpace : Class::kOther;
}

const Gpt2Splitter::AsciiClasses& Gpt2Splitter::ascii_classes() {
  static const AsciiClasses classes = [] {
    AsciiClasses table{};
    for (char32_t c = 0; c < table.size(); ++c) table[c] = class_of(CharTable::get()[c]);
    return table;
  }();
  return classes;
}

// The class of the code point at `pos`; `end` is where the next one begins.
Gpt2Splitter::Class Gpt2Splitter::read(size_t pos, size_t& end) {
  const uint8_t byte = static_cast<uint8_t>(text_[pos]);
  if (byte < 0x80) {
    end = pos + 1;
    return ascii_[byte];
  }
  end = pos;
  const char32_t c = next_code_point(text_, end);
  ill_formed_ |= c == 0xFFFD;
  return class_of(chars_[c]);
}

// The word ends behind the code points from `pos` on that are of the class.
void Gpt2Splitter::take_run(Class wanted, size_t pos) {
  for (size_t end = pos; pos < text_.size() && read(pos, end) == wanted;) pos = end;
  pos_ = pos;
}

void Gpt2Splitter::take_spaces(size_t begin, size_t first_end) {
  size_t last = begin, pos = first_end;
  for (size_t end = pos; pos < text_.size(); pos = end) {
    const Class next = read(pos, end);
    if (next == Class::kSpace) {
      last = pos;
      continue;
    }
    if (last == begin && text_[begin] == ' ') return take_run(next, end);
    pos_ = last == begin ? pos : last;
    return;
  }
  pos_ = pos;
}

size_t Gpt2Splitter::contraction_length(size_t begin) const {
  if (text_[begin] != '\'' || begin + 1 == text_.size()) return 0;
  const char first = text_[begin + 1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const std::string_view two = text_.substr(begin + 1, 2);
  return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

std::string_view Gpt2Splitter::next() {
  const size_t begin = pos_;
  ill_formed_ = false;
  if (begin == text_.size()) return {};
  size_t first_end = 0;
  const Class opening = read(begin, first_end);
  if (opening == Class::kSpace) {
    take_spaces(begin, first_end);
  } else if (const size_t contraction = contraction_length(begin); contraction > 0) {
    pos_ = begin + contraction;
  } else {
    take_run(opening, first_end);
  }
  return text_.substr(begin, pos_ - begin);
}

}  // namespace snug
