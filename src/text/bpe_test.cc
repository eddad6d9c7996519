#include "text/bpe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "text/bpe_test_support.h"
#include "text/bpe_trainer.h"
#include "text/text_stream.h"
#include "text/tokenizer_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

using Ids = std::vector<int32_t>;
using Spans = std::vector<Span>;

std::unique_ptr<Tokenizer> gpt2() { return make_bpe_tokenizer(small_gpt2(), BpeFamily::kGpt2); }
std::unique_ptr<Tokenizer> roberta() {
  return make_bpe_tokenizer(small_roberta(), BpeFamily::kRoberta);
}

struct Setting {
  const char* pointer;  // into small_bpe_json()
  Json value;
};
std::unique_ptr<Tokenizer> gpt2_with(std::initializer_list<Setting> settings) {
  Json json = small_bpe_json();
  for (const auto& [pointer, value] : settings) json[Json::json_pointer(pointer)] = value;
  return parse_tokenizer_json(json.dump(), "t");
}

Encoding encode(const Tokenizer& tokenizer, std::string_view text,
                std::optional<std::string_view> pair = std::nullopt,
                EncodeOptions options = {.with_offsets = true}) {
  Encoding out;
  tokenizer.encode(text, pair, options, out);
  return out;
}

TEST(ByteLevel, EveryByteHasItsCharacter) {
  EXPECT_EQ(byte_symbol(' '), 0x120u);
  EXPECT_EQ(byte_symbol('\n'), 0x10Au);
  EXPECT_EQ(byte_symbol(0xAD), 0x143u);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(unspell_bytes(spell_bytes(all)), all);
  EXPECT_EQ(count_code_points(spell_bytes(all)), 256u);
  EXPECT_EQ(unspell_bytes("a b"), std::nullopt);
  EXPECT_EQ(unspell_bytes("\u4E2D"), std::nullopt);
}

TEST(Bpe, IdsAndOffsets) {
  struct Row {
    std::string text;
    Ids ids;
    Spans spans;
  };
  const Row rows[] = {
      {"", {}, {}},
      {"hello world", {259, 265}, {{0, 5}, {5, 11}}},
      {" hello", {260}, {{0, 6}}},
      {"hell", {258}, {{0, 4}}},
      {"he\u00E9", {256, 127, 102}, {{0, 2}, {2, 3}, {2, 3}}},
      {"   a", {266, 220, 64}, {{0, 2}, {2, 3}, {3, 4}}},
      {"a<|endoftext|>hello", {64, 267, 259}, {{0, 1}, {1, 14}, {14, 19}}},
      {"\U0001F600", {172, 253, 246, 222}, {{0, 1}, {0, 1}, {0, 1}, {0, 1}}},
      {"a\xFFz", {64, 171, 123, 121, 89}, {{0, 1}, {1, 2}, {1, 2}, {1, 2}, {2, 3}}},
  };
  const auto tokenizer = gpt2();
  for (const Row& row : rows) {
    const Encoding got = encode(*tokenizer, row.text);
    EXPECT_EQ(got.ids, row.ids) << row.text;
    EXPECT_EQ(got.offsets, row.spans) << row.text;
    EXPECT_EQ(encode(*tokenizer, row.text, std::nullopt, {}).ids, row.ids) << row.text;
  }
}

// A word is merged whole: one for which there is no room is refused, others beside it are not.
TEST(Bpe, AWordThatTakesTooMuchIsRefused) {
  const std::string word(100000, 'a'), words = [] {
    std::string text;
    while (text.size() < 100000) text += "the cat ";
    return text;
  }();
  const EncodeOptions little{.word_room = kUsualWordRoom};
  EXPECT_FALSE(encode(*gpt2(), words, std::nullopt, little).ids.empty());
  EXPECT_FALSE(encode(*gpt2(), word).ids.empty());
  try {
    encode(*gpt2(), word, std::nullopt, little);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBudget);
    EXPECT_NE(std::string(error.what()).find("100000 bytes without white space"), std::string::npos)
        << error.what();
  }
}

TEST(Bpe, PairsHaveTypes) {
  const Encoding plain = encode(*gpt2(), "hello", " hello");
  EXPECT_EQ(plain.ids, (Ids{259, 260}));
  EXPECT_EQ(plain.type_ids, (Ids{0, 1}));
  const Encoding wrapped = encode(*roberta(), "hello", " hello");
  EXPECT_EQ(wrapped.ids, (Ids{267, 259, 269, 269, 260, 269}));
  EXPECT_EQ(wrapped.type_ids, Ids(6, 0));
  EXPECT_EQ(wrapped.offsets, (Spans{{0, 0}, {0, 5}, {0, 0}, {0, 0}, {1, 6}, {0, 0}}));  // trimmed
}

TEST(Bpe, MaskTakesTheSpaceBeforeIt) {
  const Encoding got = encode(*roberta(), "hello <mask> hello");
  EXPECT_EQ(got.ids, (Ids{267, 259, 271, 260, 269}));
  EXPECT_EQ(got.offsets, (Spans{{0, 0}, {0, 5}, {6, 12}, {13, 18}, {0, 0}}));
}

TEST(Bpe, PrefixSpace) {
  const auto tokenizer = gpt2_with({{"/pre_tokenizer/add_prefix_space", true}});
  const Encoding got = encode(*tokenizer, "hello<|endoftext|>hello hello");
  EXPECT_EQ(got.ids, (Ids{260, 267, 260, 260}));
  EXPECT_EQ(got.offsets, (Spans{{0, 5}, {5, 18}, {18, 23}, {23, 29}}));
  EXPECT_EQ(encode(*tokenizer, "").ids, Ids{});
  EXPECT_EQ(encode(*tokenizer, "\u00E9").offsets, (Spans{{0, 1}, {0, 1}, {0, 1}}));
}

TEST(Bpe, TrimmingSparesThePrefixWhereToldTo) {
  for (const bool spares : {false, true}) {
    const auto tokenizer = gpt2_with(
        {{"/post_processor/trim_offsets", true}, {"/post_processor/add_prefix_space", spares}});
    const uint32_t first = spares ? 0 : 1;
    EXPECT_EQ(encode(*tokenizer, " hello hello").offsets, (Spans{{first, 6}, {7, 12}}));
  }
}

TEST(Bpe, WithoutTheRegexATextIsOneWord) {
  const auto tokenizer = gpt2_with({{"/pre_tokenizer/use_regex", false}});
  EXPECT_EQ(encode(*tokenizer, "hello  ").ids, (Ids{259, 266}));
  EXPECT_EQ(encode(*gpt2(), "hello  a").ids, (Ids{259, 220, 220, 64}));
}

TEST(Bpe, DecodesWhatItEncodes) {
  const auto tokenizer = gpt2();
  uint64_t state = 4;
  const auto random = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text;
    for (int n = trial % 40; n > 0; --n) {
      const uint64_t limit = std::array{0x80, 0x800, 0xD800, 0x110000}[random(4)];
      char32_t c = static_cast<char32_t>(random(limit));
      if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;
      append_utf8(text, random(5) == 0 ? U' ' : c);
    }
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text).ids, false), text);
    std::string bytes;
    for (int n = trial % 40; n > 0; --n) bytes += static_cast<char>(random(256));
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, bytes).ids, false), replace_invalid_utf8(bytes));
  }
}

TEST(Bpe, DecodingSkipsSpecialsAndMendsCharacters) {
  const auto tokenizer = roberta();
  EXPECT_EQ(tokenizer->decode(Ids{267, 259, 260, 271, 269}, true), "hello hello");
  EXPECT_EQ(tokenizer->decode(Ids{267, 259, 269}, false), "<s>hello</s>");
  EXPECT_EQ(tokenizer->decode(Ids{172, 253, 64}, true), "\uFFFDa");
  EXPECT_EQ(tokenizer->decode(Ids{-1, 64, 99999}, true), "a");
  EXPECT_EQ(tokenizer->token_bytes(260), " hello");
  EXPECT_EQ(tokenizer->token_bytes(253), "\x9F");
  EXPECT_EQ(tokenizer->token(260), "\u0120hello");
  EXPECT_EQ(tokenizer->find("\u0120hello"), 260);
}

TEST(TextStream, HoldsBackUnfinishedCharacters) {
  const auto tokenizer = roberta();
  TextStream stream(*tokenizer);
  EXPECT_EQ(stream.push(267), "");  // <s>
  EXPECT_EQ(stream.push(259), "hello");
  EXPECT_EQ(stream.push(172), "");  // F0
  EXPECT_EQ(stream.push(253), "");  // 9F
  EXPECT_EQ(stream.push(246), "");  // 98
  EXPECT_EQ(stream.push(222), "\U0001F600");
  EXPECT_EQ(stream.push(172), "");
  EXPECT_EQ(stream.push(64), "\uFFFDa");
  EXPECT_EQ(stream.push(172), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
  TextStream all(*tokenizer, TextStream::Specials::kShow);
  EXPECT_EQ(all.push(267), "<s>");
}

TEST(TextStream, IsWhatDecodeGives) {
  const auto tokenizer = gpt2();
  uint64_t state = 8;
  for (int trial = 0; trial < 3000; ++trial) {
    Ids ids;
    for (int n = trial % 30; n > 0; --n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      ids.push_back(static_cast<int32_t>((state >> 33) % 267));
    }
    TextStream stream(*tokenizer);
    std::string text;
    for (int32_t id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.flush(), tokenizer->decode(ids, true));
  }
}

TEST(Bpe, StoppingEarlyIsExact) {
  const auto tokenizer = roberta();
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += i % 7 == 0 ? "hello, " : i % 5 == 0 ? " \u4E2Dworld" : i % 11 == 0 ? " <mask>" : "  a";
  }
  const EncodeOptions plain{.special_tokens = false, .with_offsets = true};
  const Encoding whole = encode(*tokenizer, text, std::nullopt, plain);
  for (size_t length = 1; length < whole.ids.size(); length += 97) {
    EncodeOptions options = plain;
    options.max_length = length;
    const Encoding cut = encode(*tokenizer, text, std::nullopt, options);
    EXPECT_EQ(cut.ids, Ids(whole.ids.begin(), whole.ids.begin() + length));
    EXPECT_EQ(cut.offsets, Spans(whole.offsets.begin(), whole.offsets.begin() + length));
  }
}

TEST(Bpe, Windows) {
  const auto windows =
      roberta()->encode_windows("hello", "a b c d e", 1, {.max_length = 8, .with_offsets = true});
  ASSERT_EQ(windows.size(), 4u);  // "a", then a space and a letter each: nine tokens
  EXPECT_EQ(windows[0].ids, (Ids{267, 259, 269, 269, 64, 220, 65, 269}));
  EXPECT_EQ(windows[1].ids, (Ids{267, 259, 269, 269, 65, 220, 66, 269}));
}

TEST(Bpe, ThreadsShareOneTokenizerAndTokenizersOneThread) {
  const auto first = gpt2(), second = roberta();
  const Ids expected_first = encode(*first, "hello world").ids,
            expected_second = encode(*second, "hello world").ids;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        wrong += encode(*first, "hello world").ids != expected_first;
        wrong += encode(*second, "hello world").ids != expected_second;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Bpe, FingerprintFollowsBehaviour) {
  EXPECT_EQ(gpt2()->fingerprint(), gpt2()->fingerprint());
  EXPECT_EQ(gpt2()->fingerprint(), gpt2_with({})->fingerprint());
  EXPECT_NE(gpt2()->fingerprint(), roberta()->fingerprint());
  for (const char* pointer : {"/pre_tokenizer/add_prefix_space", "/post_processor/trim_offsets"}) {
    EXPECT_NE(gpt2()->fingerprint(), gpt2_with({{pointer, true}})->fingerprint()) << pointer;
  }
  Json merges = small_bpe_json()["model"]["merges"];
  std::swap(merges[0], merges[1]);
  EXPECT_NE(gpt2()->fingerprint(), gpt2_with({{"/model/merges", merges}})->fingerprint());
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print_speed(const Tokenizer& tokenizer, const char* name, const std::string& text) {
  Encoding out;
  const double cold = seconds_of([&] { tokenizer.encode(text, std::nullopt, {}, out); });
  const double warm = seconds_of([&] { tokenizer.encode(text, std::nullopt, {}, out); });
  std::printf("          %s: %.1f million tokens/s at first, then %.1f\n", name,
              double(out.ids.size()) / cold / 1e6, double(out.ids.size()) / warm / 1e6);
}

TEST(Bpe, SpeedIsPrinted) {
  const char* given = std::getenv("SNUG_SHARED");
  const fs::path data =
      (given ? fs::path(given) : fs::path(SNUG_SOURCE_DIR) / "../shared") / "data";
  const fs::path shakespeare = data / "tiny-shakespeare/input.txt";
  if (!fs::exists(shakespeare)) GTEST_SKIP() << "no texts under " << data << "; set SNUG_SHARED";
  const auto tokenizer = load_tokenizer(data / "vocabs/gpt2");
  print_speed(*tokenizer, "Tiny Shakespeare", read_small_file(shakespeare));
  print_speed(*tokenizer, "WikiText-2", read_small_file(data / "wikitext-2/test.txt"));
  std::string letters;  // one word
  while (letters.size() < 10'000'000) {
    for (char c : read_small_file(shakespeare)) {
      if (std::isalpha(static_cast<unsigned char>(c))) letters += c;
    }
  }
  Encoding out;
  const double one_word = seconds_of([&] { tokenizer->encode(letters, std::nullopt, {}, out); });
  std::printf("          one word of 10 MB: %.2f s\n", one_word);
  const double head = seconds_of([&] {
    tokenizer->encode(read_small_file(shakespeare), std::nullopt, {.max_length = 512}, out);
  });
  std::printf("          512 tokens of 1 MB: %.2f ms\n", head * 1e3);
  EXPECT_EQ(out.ids.size(), 512u);
}

}  // namespace
}  // namespace snug
