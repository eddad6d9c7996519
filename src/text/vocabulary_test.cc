#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace snug {
namespace {

TEST(Vocabulary, FindsEveryTokenAndNothingElse) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 5000; ++i) tokens.push_back("t" + std::to_string(i * 7));
  const Vocabulary vocabulary(tokens);
  ASSERT_EQ(vocabulary.size(), 5000);
  for (int i = 0; i < 5000; ++i) {
    EXPECT_EQ(vocabulary.find(tokens[i]), i);
    EXPECT_EQ(vocabulary.token(i), tokens[i]);
  }
  EXPECT_EQ(vocabulary.find("t1"), -1);
  EXPECT_EQ(vocabulary.find(""), -1);
  EXPECT_EQ(vocabulary.duplicate(), -1);
}

TEST(Vocabulary, NamesTheRepeatedToken) { EXPECT_EQ(Vocabulary({"a", "b", "a"}).duplicate(), 2); }

TEST(Vocabulary, EmptyFindsNothing) {
  Vocabulary::Hashes hashes;
  EXPECT_EQ(Vocabulary().find("a"), -1);
  const Vocabulary empty(std::vector<std::string>{});
  EXPECT_EQ(empty.longest_match(empty.make_lead(""), "abc", hashes).id, -1);
}

// Against the definition, on random words over a small alphabet so that matches are frequent.
TEST(Vocabulary, LongestMatchAgreesWithTryingEveryLength) {
  uint64_t state = 1;
  const auto random = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t n = 1 + random(longest); n > 0; --n) text += "ab"[random(2)];
    return text;
  };
  std::vector<std::string> tokens;
  for (int i = 0; i < 60; ++i) {
    const std::string token = (i % 2 ? "##" : "") + word(6);
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  const Vocabulary vocabulary(tokens);
  Vocabulary::Hashes hashes;
  for (const std::string lead_text : {"", "##"}) {
    const Vocabulary::Lead lead = vocabulary.make_lead(lead_text);
    for (int trial = 0; trial < 500; ++trial) {
      const std::string text = word(10);
      size_t length = text.size();
      while (length > 0 && vocabulary.find(lead_text + text.substr(0, length)) < 0) --length;
      const Vocabulary::Match match = vocabulary.longest_match(lead, text, hashes);
      EXPECT_EQ(match.bytes, length) << text;
      EXPECT_EQ(match.id, length ? vocabulary.find(lead_text + text.substr(0, length)) : -1);
    }
  }
}

}  // namespace
}  // namespace snug
