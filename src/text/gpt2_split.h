// Splitting text into words as GPT-2's pattern does:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A word is a run of letters, of numbers or of anything else but white space, with one U+0020
// before it where there is one. Other white space stays together, but for its last character when
// a word follows.
#pragma once

#include <array>
#include <string_view>

#include "text/unicode.h"

namespace snug {

class Gpt2Splitter {
 public:
  // `text` must outlive it.
  explicit Gpt2Splitter(std::string_view text);

  // The next word, or "" at the end. All words in a row are the text.
  std::string_view next();
  // Whether the last word may hold ill-formed UTF-8, which stands for U+FFFD.
  bool ill_formed() const { return ill_formed_; }

 private:
  enum class Class : uint8_t { kOther, kLetter, kNumber, kSpace };
  using AsciiClasses = std::array<Class, 128>;

  static Class class_of(uint16_t flags);
  static const AsciiClasses& ascii_classes();
  Class read(size_t pos, size_t& end);
  void take_run(Class wanted, size_t pos);
  void take_spaces(size_t begin, size_t first_end);
  size_t contraction_length(size_t begin) const;

  std::string_view text_;
  size_t pos_ = 0;
  bool ill_formed_ = false;
  const AsciiClasses& ascii_;
  const CharTable& chars_;
};

}  // namespace snug
