#include "text/gpt2_split.h"

#include <gtest/gtest.h>

#include <vector>

namespace snug {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view text) {
  Words words;
  Gpt2Splitter splitter(text);
  for (std::string_view word; !(word = splitter.next()).empty();) words.emplace_back(word);
  return words;
}

TEST(Gpt2Split, Examples) {
  const std::pair<std::string, Words> rows[] = {
      {"", {}},
      {"Hello world", {"Hello", " world"}},
      {"don't you'll 've", {"don", "'t", " you", "'ll", " '", "ve"}},
      {"'S'sx''s", {"'", "S", "'s", "x", "''", "s"}},
      {"it're'r", {"it", "'re", "'", "r"}},
      {"a  b", {"a", " ", " b"}},
      {"a \n b", {"a", " \n", " b"}},
      {"a\nb", {"a", "\n", "b"}},
      {"a\n\nb", {"a", "\n", "\n", "b"}},
      {"a  \t", {"a", "  \t"}},
      {" ", {" "}},
      {"\u00A0a\u3000 b", {"\u00A0", "a", "\u3000", " b"}},
      {"x1\u00BD?! 42", {"x", "1\u00BD", "?!", " 42"}},
      {" \u4E2D\u6587!", {" \u4E2D\u6587", "!"}},
      {"e\u0301", {"e", "\u0301"}},
      {"\U0001F600\u200D a", {"\U0001F600\u200D", " a"}},
      {"a\xFF\xFE b\xE4\xB8", {"a", "\xFF\xFE", " b", "\xE4\xB8"}},
  };
  for (const auto& [text, words] : rows) EXPECT_EQ(split(text), words) << text;
}

TEST(Gpt2Split, NamesIllFormedWords) {
  Gpt2Splitter splitter("ab \xFF cd");
  EXPECT_EQ(splitter.next(), "ab");
  EXPECT_EQ(splitter.next(), " \xFF");
  EXPECT_TRUE(splitter.ill_formed());
  EXPECT_EQ(splitter.next(), " cd");
  EXPECT_FALSE(splitter.ill_formed());
}

// The pattern read literally: the alternatives in turn, each as greedy as it can be and
// backtracking where it has to.
class Pattern {
 public:
  explicit Pattern(std::u32string text) : text_(std::move(text)) {}

  std::vector<size_t> ends() const {
    std::vector<size_t> result;
    for (size_t pos = 0; pos < text_.size();) result.push_back(pos = match(pos));
    return result;
  }

 private:
  bool is(size_t pos, uint16_t flags) const {
    return pos < text_.size() && (CharTable::get()[text_[pos]] & flags);
  }
  bool is_other(size_t pos) const {
    return pos < text_.size() && !is(pos, kCharLetter | kCharNumber | kCharSpace);
  }
  template <class Is>
  size_t optional_space_and_run(size_t pos, Is is) const {
    for (const bool space : {true, false}) {
      if (space && text_[pos] != U' ') continue;
      size_t end = pos + space;
      while (is(end)) ++end;
      if (end > pos + space) return end;
    }
    return pos;
  }
  size_t match(size_t pos) const {
    for (const char32_t* word : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"}) {
      if (text_.compare(pos, std::u32string(word).size(), word) == 0) {
        return pos + std::u32string(word).size();
      }
    }
    size_t end = optional_space_and_run(pos, [&](size_t p) { return is(p, kCharLetter); });
    if (end == pos) end = optional_space_and_run(pos, [&](size_t p) { return is(p, kCharNumber); });
    if (end == pos) end = optional_space_and_run(pos, [&](size_t p) { return is_other(p); });
    if (end > pos) return end;
    while (is(end, kCharSpace)) ++end;
    for (size_t shorter = end; shorter > pos; --shorter) {
      const bool followed = shorter < text_.size() && !is(shorter, kCharSpace);
      if (!followed) return shorter;
    }
    return end;
  }

  std::u32string text_;
};

TEST(Gpt2Split, AgreesWithThePatternReadLiterally) {
  const std::u32string alphabet = U"  \n\t'''stremvld1\u00BD!?aZ\u00A0\u3000\u4E2D\u0301\U0001F600";
  uint64_t state = 11;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::u32string text;
    std::string bytes;
    for (int n = trial % 12; n >= 0; --n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += alphabet[(state >> 33) % alphabet.size()];
      append_utf8(bytes, text.back());
    }
    Words expected;
    size_t begin = 0;
    for (size_t end : Pattern(text).ends()) {
      expected.emplace_back();
      for (; begin < end; ++begin) append_utf8(expected.back(), text[begin]);
    }
    ASSERT_EQ(split(bytes), expected) << bytes;
  }
}

}  // namespace
}  // namespace snug
