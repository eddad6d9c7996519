#include "text/wordpiece_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/error.h"
#include "text/wordpiece.h"

namespace snug {
namespace {

using Tokens = std::vector<std::string>;

Tokens learn(const Tokens& texts, size_t size, const WordPieceTrainerOptions& options = {}) {
  WordPieceTrainer trainer(options);
  for (const std::string& text : texts) trainer.feed(text);
  return trainer.train(size);
}

TEST(WordPieceTrainer, MergesTheMostFrequentPairFirst) {
  const Tokens vocabulary = learn({"hug hug hug pug pug bun"}, 100);
  const Tokens expected = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##g", "##n",
                           "##u",   "b",     "h",     "p",     "##ug",   "hug", "pug"};
  EXPECT_EQ(vocabulary, expected);
}

TEST(WordPieceTrainer, TiesGoToThePairThatSortsFirst) {
  const Tokens vocabulary = learn({"zy zy ba ba mx mx"}, 100);
  const Tokens merges(vocabulary.end() - 3, vocabulary.end());
  EXPECT_EQ(merges, (Tokens{"ba", "mx", "zy"}));
}

TEST(WordPieceTrainer, RepeatedLettersMergeWithoutOverlap) {
  const Tokens vocabulary = learn({"aaaaa aaaaa"}, 100);
  const std::unique_ptr<Tokenizer> tokenizer = make_wordpiece_tokenizer(vocabulary);
  Encoding out;
  tokenizer->encode("aaaaa", std::nullopt, {.special_tokens = false}, out);
  EXPECT_EQ(out.ids.size(), 1u);
}

TEST(WordPieceTrainer, StopsAtTheSizeAsked) {
  EXPECT_EQ(learn({"hug hug hug pug pug bun"}, 12).size(), 12u);
  EXPECT_EQ(learn({"hug hug hug pug pug bun"}, 7).size(), 7u);  // not even the whole alphabet
}

TEST(WordPieceTrainer, OrderOfTextsDoesNotMatter) {
  const Tokens texts = {"the cat sat", "on the mat", "that cat that sat"};
  const Tokens reversed(texts.rbegin(), texts.rend());
  EXPECT_EQ(learn(texts, 40), learn(reversed, 40));
}

TEST(WordPieceTrainer, ForgetsRareWordsBeyondTheCap) {
  WordPieceTrainer trainer({.max_distinct_words = 100});
  for (int i = 0; i < 5000; ++i) trainer.feed("frequent w" + std::to_string(i));
  EXPECT_LE(trainer.distinct_words(), 100u);
  const Tokens vocabulary = trainer.train(200);
  EXPECT_NE(std::find(vocabulary.begin(), vocabulary.end(), "frequent"), vocabulary.end());
}

TEST(WordPieceTrainer, SaysWhatIsWrong) {
  EXPECT_THROW(learn({}, 100), Error);
  EXPECT_THROW(learn({" \n "}, 100), Error);
  EXPECT_THROW(learn({"a"}, 5), Error);
}

TEST(WordPieceTrainer, SpeedIsPrinted) {
  WordPieceTrainer trainer;
  uint64_t state = 7;
  std::string text;
  while (text.size() < 5'000'000) {  // words whose frequency falls off as in a language
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double u = double(state >> 11) / 9007199254740992.0;
    uint64_t rank = static_cast<uint64_t>(50'000 * u * u * u * u) * 2654435761u % 4'000'037;
    for (; rank > 0; rank /= 17) text += static_cast<char>('a' + rank % 17);
    text += ' ';
  }
  const auto start = std::chrono::steady_clock::now();
  trainer.feed(text);
  const size_t size = trainer.train(8000).size();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("          %zu tokens from 5 MB, %zu distinct words, in %.2f s\n", size,
              trainer.distinct_words(), seconds.count());
  EXPECT_EQ(size, 8000u);
}

}  // namespace
}  // namespace snug
