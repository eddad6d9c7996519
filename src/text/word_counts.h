// How often each word occurs in the texts a vocabulary is learned from. Memory is bounded: beyond a
// number of distinct words the rarer half is forgotten.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace snug {

using WordCount = std::pair<std::string_view, uint64_t>;

// More frequent first; among equals, in the order of the text. Total, so that no hash order shows
// through.
bool ranks_before(const WordCount& a, const WordCount& b);

class WordCounts {
 public:
  explicit WordCounts(size_t max_distinct_words) : max_distinct_words_(max_distinct_words) {}

  // Words of more than 400 bytes are left out: there is nothing to learn from them.
  void add(std::string_view word);
  size_t size() const { return counts_.size(); }
  std::vector<WordCount> ranked() const;  // views into this

 private:
  struct WordHash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };

  void forget_rare_words();

  size_t max_distinct_words_;
  std::unordered_map<std::string, uint64_t, WordHash, std::equal_to<>> counts_;
};

}  // namespace snug
