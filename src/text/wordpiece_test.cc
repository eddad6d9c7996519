#include "text/wordpiece.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "core/error.h"
#include "text/text_stream.h"
#include "text/tokenizer_files.h"

namespace snug {
namespace {

using Ids = std::vector<int32_t>;
using Spans = std::vector<Span>;

// Specials are 0 to 4, then un 5, ##aff 6, ##able 7, hello 8, comma 9, ideograph 10, ##s 11, a 12.
const char kVocab[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nhello\n,\n\u4E2D\n##s\na\n";

std::unique_ptr<Tokenizer> small(const Json& config = nullptr) {
  return parse_vocab(kVocab, "vocab.txt", {config});
}

Encoding encode(const Tokenizer& tokenizer, std::string_view text,
                std::optional<std::string_view> pair = std::nullopt,
                EncodeOptions options = {.with_offsets = true}) {
  Encoding out;
  tokenizer.encode(text, pair, options, out);
  return out;
}

struct Row {
  std::string text;
  Ids ids;
  Spans spans;
};

TEST(WordPiece, IdsAndOffsets) {
  const Row rows[] = {
      {"", {}, {}},
      {" \t\n", {}, {}},
      {"Unaffable", {5, 6, 7}, {{0, 2}, {2, 5}, {5, 9}}},
      {"hello,hello", {8, 9, 8}, {{0, 5}, {5, 6}, {6, 11}}},
      {"unknown", {1}, {{0, 7}}},
      {"H\u00E9llo s", {8, 1}, {{0, 5}, {6, 7}}},
      {"a\u4E2Da", {12, 10, 12}, {{0, 1}, {1, 2}, {2, 3}}},
      {"he\u200Dllo", {8}, {{0, 6}}},
      {"\xFFhello\xE2\x82", {8}, {{1, 6}}},
      {"a[MASK]a", {12, 4, 12}, {{0, 1}, {1, 7}, {7, 8}}},
      {"[mask]", {1, 1, 1}, {{0, 1}, {1, 5}, {5, 6}}},
      {"[SEP", {1, 1}, {{0, 1}, {1, 4}}},
      {"\U0001F600 a", {1, 12}, {{0, 1}, {2, 3}}},
  };
  for (const Row& row : rows) {
    const Encoding got =
        encode(*small(), row.text, std::nullopt, {.special_tokens = false, .with_offsets = true});
    EXPECT_EQ(got.ids, row.ids) << row.text;
    EXPECT_EQ(got.offsets, row.spans) << row.text;
    EXPECT_EQ(got.type_ids, Ids(row.ids.size(), 0)) << row.text;
  }
}

TEST(WordPiece, SpecialTokensAndTypes) {
  const auto tokenizer = small();
  const Encoding one = encode(*tokenizer, "hello");
  EXPECT_EQ(one.ids, (Ids{2, 8, 3}));
  EXPECT_EQ(one.offsets, (Spans{{0, 0}, {0, 5}, {0, 0}}));
  const Encoding two = encode(*tokenizer, "hello", "a,");
  EXPECT_EQ(two.ids, (Ids{2, 8, 3, 12, 9, 3}));
  EXPECT_EQ(two.type_ids, (Ids{0, 0, 0, 1, 1, 1}));
  EXPECT_TRUE(encode(*tokenizer, "hello", std::nullopt, {}).offsets.empty());
}

TEST(WordPiece, WordsOverAHundredCharactersAreUnknown) {
  const auto tokenizer = parse_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\n\u00E9\n##\u00E9\n", "v",
                                     {{{"do_lower_case", false}}});
  const auto repeat = [](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += "\u00E9";
    return text;
  };
  EXPECT_EQ(encode(*tokenizer, repeat(100)).ids.size(), 102u);  // characters, not bytes
  EXPECT_EQ(encode(*tokenizer, repeat(101)).ids, (Ids{2, 1, 3}));
  EXPECT_EQ(encode(*tokenizer, repeat(1'000'000)).offsets[1], (Span{0, 1'000'000}));
}

TEST(WordPiece, TruncatesAndKeepsTheHead) {
  const auto tokenizer = small();
  EXPECT_EQ(encode(*tokenizer, "a a a a a", std::nullopt, {.max_length = 4}).ids,
            (Ids{2, 12, 12, 3}));
  EXPECT_EQ(encode(*tokenizer, "a unaffable", std::nullopt, {.max_length = 5}).ids,
            (Ids{2, 12, 5, 6, 3}));
  EXPECT_EQ(encode(*tokenizer, "a a a a a", std::nullopt,
                   {.max_length = 4, .truncation = Truncation::kNone})
                .ids.size(),
            7u);
  EXPECT_EQ(encode(*tokenizer, "a a a a", "hello hello hello", {.max_length = 8}).ids,
            (Ids{2, 12, 12, 12, 3, 8, 8, 3}));
  EXPECT_EQ(encode(*tokenizer, "a a a", "hello hello hello", {.max_length = 8}).ids,
            (Ids{2, 12, 12, 3, 8, 8, 8, 3}));
  EXPECT_THROW(encode(*tokenizer, "a", std::nullopt, {.max_length = 1}), Error);
  EXPECT_THROW(
      encode(*tokenizer, "a", "a a a a", {.max_length = 6, .truncation = Truncation::kOnlyFirst}),
      Error);
}

// Stopping early must not show: truncation of a long text equals the head of the whole, for every
// length and any text.
TEST(WordPiece, StoppingEarlyIsExact) {
  const auto tokenizer = small();
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += i % 7 == 0    ? "hello, "
            : i % 5 == 0  ? "\u4E2Dunaffable"
            : i % 11 == 0 ? "[MASK]"
                          : " a\u0301 ";
  }
  const Encoding whole =
      encode(*tokenizer, text, std::nullopt, {.special_tokens = false, .with_offsets = true});
  for (size_t length = 1; length < whole.ids.size(); length += 97) {
    const Encoding cut =
        encode(*tokenizer, text, std::nullopt,
               {.max_length = length, .special_tokens = false, .with_offsets = true});
    EXPECT_EQ(cut.ids, Ids(whole.ids.begin(), whole.ids.begin() + length));
    EXPECT_EQ(cut.offsets, Spans(whole.offsets.begin(), whole.offsets.begin() + length));
  }
}

TEST(WordPiece, DecodesWordsWithSpaces) {
  const auto tokenizer = small();
  EXPECT_EQ(tokenizer->decode(Ids{2, 8, 9, 5, 6, 7, 3}, true), "hello, unaffable");
  EXPECT_EQ(tokenizer->decode(Ids{2, 8, 3}, false), "[CLS] hello [SEP]");
  EXPECT_EQ(tokenizer->decode(Ids{6, 7, 99}, true), "##affable");  // as the reference has it
  EXPECT_EQ(tokenizer->token_bytes(8), " hello");
  EXPECT_EQ(tokenizer->token_bytes(8, TextPlace::kStart), "hello");
  TextStream stream(*tokenizer);
  std::string text;
  for (int32_t id : {2, 8, 9, 5, 6, 7, 3}) text += stream.push(id);
  EXPECT_EQ(text + stream.flush(), "hello, unaffable");
}

TEST(WordPiece, Windows) {
  const auto tokenizer = small();
  const auto windows =
      tokenizer->encode_windows("hello", "a , a , a", 1, {.max_length = 7, .with_offsets = true});
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].ids, (Ids{2, 8, 3, 12, 9, 12, 3}));
  EXPECT_EQ(windows[1].ids, (Ids{2, 8, 3, 12, 9, 12, 3}));
  EXPECT_EQ(windows[1].offsets[3], (Span{4, 5}));
  const auto single = tokenizer->encode_windows("a , a , a", std::nullopt, 0, {.max_length = 4});
  ASSERT_EQ(single.size(), 3u);
  EXPECT_EQ(single[2].ids, (Ids{2, 12, 3}));
  EXPECT_EQ(tokenizer->encode_windows("hello", "", 0, {.max_length = 8}).size(), 1u);
  EXPECT_THROW(tokenizer->encode_windows("a a a a", "hello hello", 0, {.max_length = 7}), Error);
  EXPECT_THROW(tokenizer->encode_windows("a", "hello hello hello", 9, {.max_length = 7}), Error);
}

TEST(WordPiece, AddedTokensObeyTheirFlags) {
  const Json config = {
      {"added_tokens_decoder",
       {{"13", {{"content", "<x>"}, {"lstrip", true}, {"rstrip", true}, {"normalized", false}}},
        {"14", {{"content", "New York"}, {"normalized", true}}},
        {"15", {{"content", "lone"}, {"single_word", true}, {"normalized", false}}}}}};
  const auto tokenizer = small(config);
  EXPECT_EQ(tokenizer->vocab_size(), 16);
  EXPECT_EQ(tokenizer->token(14), "New York");
  const EncodeOptions plain{.special_tokens = false, .with_offsets = true};
  const Encoding stripped = encode(*tokenizer, "a <x>  a", std::nullopt, plain);
  EXPECT_EQ(stripped.ids, (Ids{12, 13, 12}));
  EXPECT_EQ(stripped.offsets[1], (Span{1, 7}));
  EXPECT_EQ(encode(*tokenizer, "NEW y\u00F6rk", std::nullopt, plain).ids, (Ids{14}));
  EXPECT_EQ(encode(*tokenizer, "alone lone,", std::nullopt, plain).ids, (Ids{1, 15, 9}));
}

TEST(WordPiece, ThreadsShareOneTokenizer) {
  const auto tokenizer = small();
  const Ids expected = encode(*tokenizer, "hello unaffable, a").ids;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        wrong += encode(*tokenizer, "hello unaffable, a").ids != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(WordPiece, RandomBytesAreSafeAndRepeatable) {
  const auto cased = small({{"do_lower_case", false}}), uncased = small();
  uint64_t state = 3;
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (int n = trial % 64; n > 0; --n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += static_cast<char>(state >> (state >> 62 ? 33 : 56));
    }
    for (const Tokenizer* tokenizer : {cased.get(), uncased.get()}) {
      const Encoding once = encode(*tokenizer, text), twice = encode(*tokenizer, text);
      EXPECT_EQ(once.ids, twice.ids);
      uint32_t last = 0;
      for (const Span& span : once.offsets) {
        EXPECT_LE(span.begin, span.end);
        EXPECT_LE(span.end, count_code_points(text));
        EXPECT_TRUE(span.end == 0 || last <= span.end);
        last = span.end;
      }
    }
  }
}

TEST(WordPiece, FingerprintFollowsBehaviour) {
  EXPECT_EQ(small()->fingerprint(), small()->fingerprint());
  // What null means anyway.
  EXPECT_EQ(small()->fingerprint(), small({{"strip_accents", true}})->fingerprint());
  EXPECT_NE(small()->fingerprint(), small({{"do_lower_case", false}})->fingerprint());
  EXPECT_NE(parse_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\nab\nc\n", "v")->fingerprint(),
            parse_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nbc\n", "v")->fingerprint());
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(WordPiece, SpeedIsPrinted) {
  const auto tokenizer = small();
  std::string text;
  while (text.size() < 10'000'000) text += "hello, unaffable a hellos ";
  Encoding out;
  const double whole = seconds_of([&] { tokenizer->encode(text, std::nullopt, {}, out); });
  std::printf("          %.1f million tokens/s\n", double(out.ids.size()) / whole / 1e6);
  const double head =
      seconds_of([&] { tokenizer->encode(text, std::nullopt, {.max_length = 512}, out); });
  std::printf("          512 tokens of 10 MB: %.2f ms\n", head * 1e3);
  EXPECT_EQ(out.ids.size(), 512u);
  EXPECT_LT(head, whole);
}

}  // namespace
}  // namespace snug
