#include "text/word_counts.h"

#include <algorithm>

namespace snug {
namespace {

constexpr size_t kMaxWordBytes = 400;  // 100 characters: more are unknown to WordPiece anyway

}  // namespace

bool ranks_before(const WordCount& a, const WordCount& b) {
  return a.second != b.second ? a.second > b.second : a.first < b.first;
}

void WordCounts::add(std::string_view word) {
  if (word.size() > kMaxWordBytes) return;
  const auto it = counts_.find(word);
  if (it != counts_.end()) {
    ++it->second;
    return;
  }
  if (counts_.size() >= max_distinct_words_) forget_rare_words();
  counts_.emplace(word, 1);
}

void WordCounts::forget_rare_words() {
  std::vector<WordCount> words(counts_.begin(), counts_.end());
  const auto middle = words.begin() + words.size() / 2;
  std::nth_element(words.begin(), middle, words.end(), ranks_before);
  for (auto it = middle; it != words.end(); ++it) counts_.erase(counts_.find(it->first));
}

std::vector<WordCount> WordCounts::ranked() const {
  std::vector<WordCount> words(counts_.begin(), counts_.end());
  std::sort(words.begin(), words.end(), ranks_before);
  return words;
}

}  // namespace snug
