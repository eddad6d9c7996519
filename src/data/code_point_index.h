// Where the n-th code point of a text begins: answers of questions are placed by code points, texts
// are bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace snug {

class CodePointIndex {
 public:
  // `text` is valid UTF-8 and must outlive the index.
  void reset(std::string_view text);
  uint64_t size() const { return size_; }     // code points in the text
  size_t byte_of(uint64_t code_point) const;  // of one that is at most size()
  // How many begin before `byte`, which is at most the text's size.
  uint64_t code_point_of(size_t byte) const;

 private:
  static constexpr uint64_t kStep = 256;

  std::string_view text_;
  uint64_t size_ = 0;
  std::vector<size_t> marks_;  // where code points 0, kStep, 2 kStep, ... begin
};

}  // namespace snug
