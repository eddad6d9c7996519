#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <fstream>

#include "core/file.h"
#include "text/error_test_support.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

using Ids = std::vector<int32_t>;

const fs::path kGolden = fs::path(SNUG_SOURCE_DIR) / "tests/golden/pieces";

// Protobuf by hand.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string number_field(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(value);
}
std::string bytes_field(int number, const std::string& content) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(content.size()) + content;
}
std::string float_field(int number, float value) {
  std::string bytes = varint(static_cast<uint64_t>(number) << 3 | 5);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(bits >> (8 * i));
  return bytes;
}

enum Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

std::string piece(const std::string& text, float score = 0, int type = kNormal) {
  return bytes_field(1, bytes_field(1, text) + float_field(2, score) + number_field(3, type));
}

// <unk> 0, <s> 1, </s> 2, then _ 3, a 4, b 5, _a 6, A 7, "," 8, 1 9, _1, 10, e 11, é 12, " 13
std::string small_pieces() {
  return piece("<unk>", 0, kUnknown) + piece("<s>", 0, kControl) + piece("</s>", 0, kControl) +
         piece("\u2581", -3) + piece("a", -2) + piece("b", -2.5) + piece("\u2581a", -2.2) +
         piece("A", -4) + piece(",", -4) + piece("1", -4) + piece("\u25811,", -1) + piece("e", -4) +
         piece("\u00E9", -4) + piece("\"", -4);
}

std::string xlnet_pieces() {
  return small_pieces() + piece("<cls>", 0, kControl) + piece("<sep>", 0, kControl) +
         piece("<pad>", 0, kControl) + piece("<mask>", 0, kControl) + piece("<eod>", 0, kControl) +
         piece("<eop>", 0, kUserDefined);
}

std::unique_ptr<Tokenizer> parse(const std::string& bytes, const Json& config = nullptr,
                                 std::string_view origin = "m") {
  return parse_sentencepiece(bytes, origin, {config, "c"});
}

Encoding encode(const Tokenizer& tokenizer, std::string_view text,
                std::optional<std::string_view> pair = std::nullopt, EncodeOptions options = {}) {
  options.with_offsets = true;
  Encoding out;
  tokenizer.encode(text, pair, options, out);
  return out;
}

Json spans_json(const std::vector<Span>& spans) {
  Json json = Json::array();
  for (const Span& span : spans) json.push_back(Json::array({span.begin, span.end}));
  return json;
}

void expect_golden(const Tokenizer& tokenizer, bool shifts_origins) {
  std::ifstream in(kGolden / "texts.jsonl");
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const std::string text = row["text"];
    std::optional<std::string> pair;
    if (row.contains("pair")) pair = row["pair"];
    const Encoding got = encode(tokenizer, text, pair);
    EXPECT_EQ(Json(got.ids), row["ids"]) << text;
    EXPECT_EQ(Json(got.type_ids), row["type_ids"]) << text;
    if (text[0] == 1 && !shifts_origins) continue;
    EXPECT_EQ(spans_json(got.offsets), row["offsets"]) << text;
  }
  EXPECT_GT(rows, 30);
}

// Both hold one model; the reference made the vectors from the second.
TEST(PiecesGolden, TheModelFileAgrees) {
  // Behind a character that is removed at the beginning, the reference shifts all offsets.
  const auto tokenizer = parse(read_small_file(kGolden / "spiece.model"));
  for (int round = 0; round < 2; ++round) expect_golden(*tokenizer, false);  // then from memory
}

TEST(PiecesGolden, TheTokenizerJsonAgrees) {
  const std::string text = read_small_file(kGolden / "tokenizer.json");
  expect_golden(*parse_tokenizer_json(text, "tokenizer.json"), true);
}

TEST(SentencePiece, PlainModelsAddNothing) {
  const auto tokenizer = parse(small_pieces());
  const Encoding got = encode(*tokenizer, "a  b\u4E2D\u6587 1,");
  EXPECT_EQ(got.ids, (Ids{6, 3, 5, 0, 10}));
  EXPECT_EQ(got.offsets, (std::vector<Span>{{0, 1}, {3, 4}, {3, 4}, {4, 6}, {7, 9}}));
  EXPECT_EQ(encode(*tokenizer, "a</s>").ids, (Ids{6, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{6, 3, 5, 2}, false), "a b</s>");
  EXPECT_EQ(tokenizer->decode(Ids{6, 3, 5, 2}, true), "a b");
  EXPECT_EQ(tokenizer->special_ids().eos, 2);
}

TEST(SentencePiece, XlnetEndsWithItsClass) {
  const auto tokenizer = parse(xlnet_pieces());
  const Encoding two = encode(*tokenizer, "a", "a b");
  EXPECT_EQ(two.ids, (Ids{6, 15, 6, 3, 5, 15, 14}));
  EXPECT_EQ(two.type_ids, (Ids{0, 0, 1, 1, 1, 1, 2}));
  EXPECT_EQ(encode(*tokenizer, "a").type_ids, (Ids{0, 0, 2}));
  // The number's comma, quotes, accents; upper case stays.
  EXPECT_EQ(encode(*tokenizer, "1, ``A'' \u00E9").ids, (Ids{3, 9, 8, 3, 13, 7, 13, 3, 11, 15, 14}));
  EXPECT_EQ(encode(*tokenizer, "1,").offsets[1], (Span{0, 1}));
  EXPECT_EQ(encode(*tokenizer, "1,").offsets[2], (Span{1, 2}));
  EXPECT_EQ(encode(*tokenizer, "a <mask>").offsets[1], (Span{1, 8}));
  const auto windows = tokenizer->encode_windows("a", "a a a a", 1, {.max_length = 6});
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_EQ(windows[2].ids, (Ids{6, 15, 6, 6, 15, 14}));
}

TEST(SentencePiece, TheConfigurationChangesWhatItNames) {
  const std::string model = xlnet_pieces();
  const auto ids = [&](Json config, std::string_view text) {
    config["tokenizer_class"] = "XLNetTokenizer";
    return encode(*parse(model, config), text, std::nullopt, {.special_tokens = false}).ids;
  };
  EXPECT_EQ(ids({{"do_lower_case", true}}, "A"), (Ids{6}));
  EXPECT_EQ(ids({{"keep_accents", true}}, "\u00E9"), (Ids{3, 12}));
  EXPECT_EQ(ids({}, "a\na"), (Ids{6, 6}));
  EXPECT_EQ(ids({{"remove_space", false}}, "a\na"), (Ids{6, 0, 4}));
  EXPECT_EQ(ids({{"added_tokens_decoder", {{"20", {{"content", "New"}}}}}}, "a new New"),
            (Ids{6, 3, 0, 11, 0, 20}));
  const auto refused = [&](const Json& config) { return error_of([&] { parse(model, config); }); };
  EXPECT_EQ(refused({{"tokenizer_class", "LlamaTokenizer"}}),
            "c: unsupported tokenizer_class \"LlamaTokenizer\" for a SentencePiece model "
            "(supported: AlbertTokenizer, XLNetTokenizer, XLMRobertaTokenizer, T5Tokenizer)");
  EXPECT_EQ(refused({{"sp_model_kwargs", {{"enable_sampling", true}}}}),
            "c: sp_model_kwargs must be absent or empty (not supported), found an object");
  EXPECT_EQ(refused({{"tokenizer_class", "AlbertTokenizer"}}),
            "m: the classification token is missing");
  EXPECT_EQ(refused({{"do_lower_case", 1}}), "c: do_lower_case must be true or false, found 1");
}

TEST(SentencePiece, OtherFamiliesCountTheirIds) {
  const auto roberta = parse(small_pieces(), {{"tokenizer_class", "XLMRobertaTokenizer"}});
  EXPECT_EQ(encode(*roberta, "a x").ids, (Ids{0, 7, 4, 3, 2}));
  EXPECT_EQ(roberta->find("<mask>"), 15);
  EXPECT_EQ(roberta->vocab_size(), 16);
  EXPECT_NE(error_of([&] {
              parse(small_pieces(), nullptr, "x/sentencepiece.bpe.model");
            }).find("the family of this model is not known"),
            std::string::npos);
  const auto t5 = parse(small_pieces() + piece("<pad>", 0, kControl),
                        {{"tokenizer_class", "T5Tokenizer"}, {"extra_ids", 2}});
  EXPECT_EQ(encode(*t5, "a<extra_id_0>", "a").ids, (Ids{6, 16, 2, 6, 2}));
  EXPECT_EQ(t5->vocab_size(), 17);
}

TEST(SentencePiece, SavesAndLoadsAgain) {
  const fs::path folder =
      fs::temp_directory_path() / ("snug-sentencepiece-" + std::to_string(::getpid()));
  const std::pair<std::string, Json> cases[] = {
      {small_pieces(), nullptr},
      {xlnet_pieces(), {{"do_lower_case", true}, {"model_max_length", 77}}},
      {small_pieces(), {{"tokenizer_class", "XLMRobertaTokenizer"}}},
      {small_pieces() + piece("<pad>", 0, kControl),
       {{"tokenizer_class", "T5Tokenizer"}, {"extra_ids", 3}}},
  };
  for (const auto& [model, config] : cases) {
    const auto original = parse(model, config);
    original->save(folder);
    const auto loaded = load_tokenizer(folder);
    EXPECT_EQ(loaded->fingerprint(), original->fingerprint()) << config;
    EXPECT_EQ(loaded->vocab_size(), original->vocab_size());
    EXPECT_EQ(loaded->model_max_length(), original->model_max_length());
    EXPECT_EQ(encode(*loaded, "a A 1,").ids, encode(*original, "a A 1,").ids);
    fs::remove_all(folder);
  }
  EXPECT_NE(parse(xlnet_pieces())->fingerprint(),
            parse(xlnet_pieces(), {{"do_lower_case", true}})->fingerprint());
  write_file_atomically((make_directories(folder), folder / "one.model"), small_pieces());
  EXPECT_EQ(load_tokenizer(folder)->vocab_size(), 14);
  write_file_atomically(folder / "two.model", small_pieces());
  EXPECT_NE(error_of([&] { load_tokenizer(folder); }).find("one.model or two.model"),
            std::string::npos);
  fs::remove_all(folder);
}

TEST(SentencePiece, StoppingEarlyIsExact) {
  const auto tokenizer = parse(xlnet_pieces());
  std::string text;
  for (int i = 0; i < 6000; ++i) text += i % 7 == 0 ? "1, " : i % 5 == 0 ? "\u00E9b" : " a ";
  const EncodeOptions all{.special_tokens = false};
  const Encoding whole = encode(*tokenizer, text, std::nullopt, all);
  for (size_t length : {1, 500, 4000}) {
    const Encoding cut =
        encode(*tokenizer, text, std::nullopt, {.max_length = length, .special_tokens = false});
    EXPECT_EQ(cut.ids, Ids(whole.ids.begin(), whole.ids.begin() + length));
  }
}

TEST(SentencePieceFile, BadModelsAreNamedExactly) {
  const std::string unknown = piece("<unk>", 0, kUnknown), all = small_pieces();
  const std::pair<std::string, std::string> rows[] = {
      {"", "m: the model has no pieces"},
      {"\x0A", "m: not a SentencePiece model: byte 0: a field is malformed or cut off"},
      {"\x0A\x05"
       "ab",
       "m: not a SentencePiece model: byte 0: a field is malformed or cut off"},
      {"<html>", "m: not a SentencePiece model: byte 0: a field is malformed or cut off"},
      {std::string("\x00\x01", 2),
       "m: not a SentencePiece model: byte 0: a field is malformed or cut off"},
      {std::string(12, '\xFF'),
       "m: not a SentencePiece model: byte 0: a field is malformed or cut off"},
      {unknown + bytes_field(1, "\x0A"),
       "m: not a SentencePiece model: byte 18: a field is malformed or cut off"},
      {number_field(1, 3),
       "m: not a SentencePiece model: byte 0: a field is not of the kind it "
       "should be"},
      {unknown + piece(""), "m: piece 1 is empty"},
      {unknown + piece("a\xFF"), "m: piece 1 is not valid UTF-8"},
      {unknown + piece(std::string("a\0b", 3)), "m: piece 1 holds a NUL"},
      {unknown + piece(std::string(600, 'a')),
       "m: piece 1 has 600 bytes, more than the 512 "
       "supported"},
      {unknown + piece("a", NAN), "m: piece 1 \"a\" has no finite score"},
      {unknown + piece("a") + piece("a"), "m: piece \"a\" occurs twice"},
      {piece("a"), "m: 0 pieces stand for the unknown, expected one"},
      {unknown + piece("a", 0, 9), "m: a piece of type 9 is not supported"},
      {all + bytes_field(2, number_field(3, 7)), "m: model type 7 is not supported"},
      {all + bytes_field(2, "") + bytes_field(2, ""),
       "m: not a SentencePiece model: byte 189: a part occurs twice"},
      {all + bytes_field(3, bytes_field(2, "abc")),
       "m: its charsmap is malformed: it is shorter than its header"},
  };
  expect_errors(rows, [](const auto& model) { parse(model); });
  // Refused by the library.
  EXPECT_NE(error_of([&] { parse(unknown + piece("x", 0, kByte)); }).find("m: "),
            std::string::npos);
}

// Whatever a file holds, it loads into something that can encode, or is refused.
TEST(SentencePieceFile, DamagedFilesAreRefusedOrHarmless) {
  const std::string sound = read_small_file(kGolden / "spiece.model");
  int refused = 0, loaded = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      const auto tokenizer = parse(bytes);
      encode(*tokenizer, "Hello\u00A0\u00E9\uFB01 w\u0301orld 12, \u2026");
      ++loaded;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      ++refused;
    }
  };
  for (size_t length = 0; length < sound.size(); length += 5) attempt(sound.substr(0, length));
  for (size_t bit = 0; bit < 8 * sound.size(); bit += 11) {
    std::string damaged = sound;
    damaged[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    attempt(damaged);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(loaded, 100);
}

}  // namespace
}  // namespace snug
