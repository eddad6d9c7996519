// What the tokenizers must know about one code point, in two bytes of a two-stage table built from
// ICU at first use. The reference library froze its Unicode data at four different versions (BERT's
// categories 8.0, decomposition 9.0, GPT-2's categories 16.0, lower case 17.0), so ICU's answer
// counts only for characters that were in the version concerned; later ones count as unassigned.
#pragma once

#include <unicode/utf8.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

enum CharFlag : uint16_t {
  kCharDropped = 1,      // removed by text cleaning: Cc (but tab, LF, CR), Cf, Co, U+FFFD
  kCharSpace = 2,        // White_Space
  kCharPunct = 4,        // P* or ASCII punctuation
  kCharMark = 8,         // Mn, removed with the accents
  kCharCjk = 16,         // the ideograph blocks that BERT surrounds with spaces
  kCharDecomposes = 32,  // changes under NFD
  kCharNonStarter = 64,  // canonical combining class above 0
  kCharUpper = 128,      // has a lower case
  kCharLetter = 256,     // \p{L} as GPT-2's pattern sees it
  kCharNumber = 512,     // \p{N}, likewise
  kCharAnyMark = 1024,   // M*, removed by the general accent stripper
};

class CharTable {
 public:
  static const CharTable& get();  // built once, about 100 kB

  uint16_t operator[](char32_t c) const {
    return flags_[(size_t{index_[c >> 7]} << 7) | (c & 127)];
  }

 private:
  CharTable();

  std::array<uint16_t, 0x110000 / 128> index_{};  // block of 128 code points -> its place in flags_
  std::vector<uint16_t> flags_;
};

// The code point at `pos`, which moves past it. A maximal part of an ill-formed sequence is one
// U+FFFD.
inline char32_t next_code_point(std::string_view text, size_t& pos) {
  UChar32 c;
  U8_NEXT_OR_FFFD(text.data(), pos, text.size(), c);
  return static_cast<char32_t>(c);
}

inline void append_utf8(std::string& out, char32_t c) {
  char bytes[U8_MAX_LENGTH];
  int length = 0;
  U8_APPEND_UNSAFE(bytes, length, c);
  out.append(bytes, length);
}

size_t count_code_points(std::string_view text);
// Position of the first ill-formed byte, or npos.
size_t find_invalid_utf8(std::string_view text);
// The text with each maximal ill-formed part replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
// How much of the text remains without the beginning of a character that it may end in.
size_t complete_utf8_length(std::string_view text);

using CodePoints = std::array<char32_t, 8>;
// Both return how many code points they wrote.
size_t decompose(char32_t c, CodePoints& out);  // full canonical decomposition; for kCharDecomposes
using LongCodePoints = std::array<char32_t, 18>;
size_t decompose_compatibly(char32_t c, LongCodePoints& out);  // NFKD, of any character
char32_t compose(char32_t first, char32_t second);             // 0: they do not compose
// Without context: a final sigma stays medial; for kCharUpper.
size_t to_lower_case(char32_t c, CodePoints& out);
uint8_t combining_class(char32_t c);  // for kCharNonStarter
bool is_word_char(char32_t c);        // \w of a Unicode regular expression

}  // namespace snug
