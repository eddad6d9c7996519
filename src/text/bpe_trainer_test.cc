#include "text/bpe_trainer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/gpt2_split.h"

namespace snug {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

BpeVocabulary learn(const std::vector<std::string>& texts, size_t size,
                    BpeFamily family = BpeFamily::kGpt2, const BpeTrainerOptions& options = {}) {
  BpeTrainer trainer(options);
  for (const std::string& text : texts) trainer.feed(text);
  return trainer.train(size, family);
}

// The definition: count all pairs of all words, merge the most frequent, again and again.
Merges learn_naively(const std::string& text, size_t count) {
  std::vector<std::vector<std::string>> words;
  Gpt2Splitter splitter(text);
  for (std::string_view word; !(word = splitter.next()).empty();) {
    words.emplace_back();
    for (char byte : word) words.back().emplace_back(1, byte);
  }
  Merges merges;
  while (merges.size() < count) {
    std::map<std::pair<std::string, std::string>, int> counts;
    for (const auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    auto best = counts.end();
    for (auto it = counts.begin(); it != counts.end(); ++it) {
      if (best == counts.end() || it->second > best->second) best = it;
    }
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    merges.emplace_back(spell_bytes(left), spell_bytes(right));
    for (auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != left || word[i + 1] != right) continue;
        word[i] += right;
        word.erase(word.begin() + i + 1);
      }
    }
  }
  return merges;
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const BpeVocabulary vocabulary = learn({"hug hug hug pug pug bun"}, 1000);
  const Merges expected = {
      {"u", "g"}, {"h", "ug"}, {"\u0120", "hug"}, {"\u0120", "p"}, {"\u0120p", "ug"}};
  EXPECT_EQ(vocabulary.merges, expected);
  EXPECT_EQ(vocabulary.tokens.size(), 256 + 5 + 1);
  EXPECT_EQ(vocabulary.tokens[0], "!");
  EXPECT_EQ(vocabulary.tokens[220], "\u0120");
  EXPECT_EQ(vocabulary.tokens[256], "ug");
  EXPECT_EQ(vocabulary.tokens.back(), "<|endoftext|>");
}

TEST(BpeTrainer, AgreesWithTheDefinition) {
  uint64_t state = 9;
  for (int trial = 0; trial < 30; ++trial) {
    std::string text;
    for (int i = 0; i < 300; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += "aabbc \u00E9"[(state >> 33) % 8];
    }
    text = replace_invalid_utf8(text);
    EXPECT_EQ(learn({text}, 257 + 20 + trial).merges, learn_naively(text, 20 + trial)) << text;
  }
}

TEST(BpeTrainer, RobertaHasItsSpecialTokens) {
  const BpeVocabulary vocabulary = learn({"hug hug"}, 300, BpeFamily::kRoberta);
  const std::vector<std::string> first(vocabulary.tokens.begin(), vocabulary.tokens.begin() + 5);
  EXPECT_EQ(first, (std::vector<std::string>{"<s>", "<pad>", "</s>", "<unk>", "!"}));
  EXPECT_EQ(vocabulary.tokens.back(), "<mask>");
  const auto tokenizer = make_bpe_tokenizer(vocabulary, BpeFamily::kRoberta);
  const SpecialIds& ids = tokenizer->special_ids();
  EXPECT_EQ(ids.cls, 0);
  EXPECT_EQ(ids.bos, 0);
  EXPECT_EQ(ids.pad, 1);
  EXPECT_EQ(ids.sep, 2);
  EXPECT_EQ(ids.eos, 2);
  EXPECT_EQ(ids.unk, 3);
  EXPECT_EQ(ids.mask, tokenizer->vocab_size() - 1);
}

TEST(BpeTrainer, LearnsWordsThatItsTokenizerThenFinds) {
  const auto tokenizer = make_bpe_tokenizer(learn({"low lower lowest low"}, 400), BpeFamily::kGpt2);
  Encoding out;
  tokenizer->encode("low", std::nullopt, {}, out);
  EXPECT_EQ(out.ids.size(), 1u);
}

TEST(BpeTrainer, StopsAtTheSizeAskedAndForgetsRareWords) {
  EXPECT_EQ(learn({"hug hug hug pug pug bun"}, 259).tokens.size(), 259u);
  EXPECT_EQ(learn({"hug hug"}, 257).merges.size(), 0u);
  BpeTrainer trainer({.max_distinct_words = 100});
  for (int i = 0; i < 5000; ++i) trainer.feed("frequent w" + std::to_string(i));
  EXPECT_LE(trainer.distinct_words(), 100u);
}

TEST(BpeTrainer, SaysWhatIsWrong) {
  EXPECT_THROW(learn({}, 300), Error);
  EXPECT_THROW(learn({"a"}, 256), Error);
  EXPECT_THROW(learn({"a"}, 260, BpeFamily::kRoberta), Error);
}

TEST(BpeTrainer, SpeedIsPrinted) {
  std::string text;
  uint64_t state = 7;
  while (text.size() < 5'000'000) {  // words whose frequency falls off as in a language
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double u = double(state >> 11) / 9007199254740992.0;
    uint64_t rank = static_cast<uint64_t>(50'000 * u * u * u * u) * 2654435761u % 4'000'037;
    for (; rank > 0; rank /= 17) text += static_cast<char>('a' + rank % 17);
    text += ' ';
  }
  const auto start = std::chrono::steady_clock::now();
  const size_t size = learn({text}, 8000).tokens.size();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("          %zu tokens from 5 MB in %.2f s\n", size, seconds.count());
  EXPECT_EQ(size, 8000u);
}

}  // namespace
}  // namespace snug
