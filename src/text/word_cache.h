// Words that a thread has merged lately. A language repeats few words very often, so most need no
// merging at all. One fixed table for each thread, shared by all its tokenizers: a newer word takes
// the place of an older one with the same hash.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace snug {

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 26, kMaxTokens = 8;

  static WordCache& of_this_thread();  // 1 MiB, from its first use on
  static uint32_t new_owner();         // distinguishes tokenizers

  struct Entry {
    uint32_t owner = 0;  // 0: nobody
    uint8_t bytes = 0, tokens = 0;
    char word[kMaxWordBytes];
    int32_t ids[kMaxTokens];
  };
  // Where the word is, or would be; it must not be longer than kMaxWordBytes.
  Entry& place(uint32_t owner, std::string_view word);
  static bool holds(const Entry& entry, uint32_t owner, std::string_view word);
  // Remembers the word, unless it has too many tokens.
  static void fill(Entry& entry, uint32_t owner, std::string_view word,
                   std::span<const int32_t> ids);

 private:
  WordCache();

  std::vector<Entry> entries_;
};

}  // namespace snug
