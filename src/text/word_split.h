// Splitting normalised text into words: white space separates, punctuation stands alone.
#pragma once

#include <string_view>

#include "text/unicode.h"

namespace snug {

// Calls word(begin, end) for each word and punctuation mark in bytes [begin, end) of `text`, until
// it returns false.
template <class Word>
void for_each_word(std::string_view text, size_t begin, size_t end, Word word) {
  const CharTable& chars = CharTable::get();
  text = text.substr(0, end);
  size_t word_begin = begin;
  for (size_t pos = begin; pos < end;) {
    const size_t here = pos;
    const uint8_t byte = static_cast<uint8_t>(text[pos]);
    const uint16_t flags =
        chars[byte < 0x80 ? (++pos, char32_t{byte}) : next_code_point(text, pos)];
    if (!(flags & (kCharSpace | kCharPunct))) continue;
    if (word_begin < here && !word(word_begin, here)) return;
    if (!(flags & kCharSpace) && !word(here, pos)) return;
    word_begin = pos;
  }
  if (word_begin < end) word(word_begin, end);
}

}  // namespace snug
