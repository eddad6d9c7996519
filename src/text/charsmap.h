// SentencePiece's rules of normalisation as its models and tokenizer.json carry them, the
// "precompiled charsmap": a double-array trie, whose leaves point into a pool of replacements. The
// whole of it is checked once, so that no text can lead a search out of it: neither here nor in the
// SentencePiece library, which does not look.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

class Charsmap {
 public:
  Charsmap() = default;  // no rules
  // Errors (kInput) call it `name` in the file `origin`.
  Charsmap(std::string_view blob, std::string_view name, std::string_view origin);

  bool empty() const { return units_.empty(); }
  // What replaces the shortest, or the longest, beginning of `text` that has a rule.
  struct Rule {
    size_t bytes = 0;  // of the text
    std::string_view replacement;
  };
  std::optional<Rule> shortest(std::string_view text) const;
  std::optional<Rule> longest(std::string_view text) const;

 private:
  template <class Found>
  void search(std::string_view text, Found found) const;

  std::vector<uint32_t> units_;
  std::string pool_;  // each replacement ends in a NUL
};

// Bytes of a base64 text; nothing where it is not one.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace snug
