// A sentence being put together from its words: the text that joins them with one space between
// each two, and the labels, in memory of its own, because the lines they came from are gone by
// then.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/row_reader.h"

namespace snug {

class WordRow {
 public:
  static constexpr size_t kMaxWords = 1'000'000;

  void clear();
  void add(std::string_view word, std::string_view label);
  bool empty() const { return words_.empty(); }
  size_t size() const { return words_.size(); }
  size_t bytes() const { return text_.size() + labels_.size(); }

  // Sets text and words of `row`, as views that live until clear().
  void finish(Row& row);

 private:
  std::string text_, labels_;
  std::vector<Word> words_;
  std::vector<size_t> label_ends_;  // [words], in labels_
};

}  // namespace snug
