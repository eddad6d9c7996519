// Rewrites a text in place, character by character, as the reference's normalizers do: `change`
// says that a character is new (1), replaces one (0), or replaces one and swallows that many more
// (-n).
#pragma once

#include "text/normalizer.h"

namespace snug {

class Rewriter {
 public:
  // Until it is destroyed, which makes the result the text, `text` stays as it was.
  explicit Rewriter(NormalizedText& text);
  ~Rewriter();
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  void put(char32_t c, int change);
  void copy_to(size_t end);  // everything unread before this byte, as it is
  void skip_to(size_t end) { place_ = end; }

 private:
  void swallow();

  NormalizedText& text_;
  NormalizedText& out_;
  size_t place_ = 0;  // bytes of the text that were read
};

}  // namespace snug
