// Text from ids that come one by one, as when a model writes: each call gives what is certain by
// then. Of a character whose bytes are spread over several tokens, the first ones wait.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace snug {

class TextStream {
 public:
  enum class Specials { kSkip, kShow };

  // `tokenizer` must outlive it.
  explicit TextStream(const Tokenizer& tokenizer, Specials specials = Specials::kSkip)
      : tokenizer_(tokenizer), specials_(specials) {}

  // The text that became certain; all results in a row, with flush() last, are what decode() gives.
  std::string push(int32_t id);
  // The rest, after which a new text begins.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  Specials specials_;
  TextPlace place_ = TextPlace::kStart;
  std::string pending_;  // the beginning of a character
};

}  // namespace snug
