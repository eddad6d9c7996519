#include "data/word_row.h"

namespace snug {

void WordRow::clear() {
  text_.clear();
  labels_.clear();
  words_.clear();
  label_ends_.clear();
}

void WordRow::add(std::string_view word, std::string_view label) {
  if (!words_.empty()) text_ += ' ';
  words_.push_back({.begin = text_.size(), .end = text_.size() + word.size()});
  text_ += word;
  labels_ += label;
  label_ends_.push_back(labels_.size());
}

void WordRow::finish(Row& row) {
  size_t begin = 0;
  for (size_t i = 0; i < words_.size(); ++i) {
    words_[i].label = std::string_view(labels_).substr(begin, label_ends_[i] - begin);
    begin = label_ends_[i];
  }
  row.text = text_;
  row.words = words_;
}

}  // namespace snug
