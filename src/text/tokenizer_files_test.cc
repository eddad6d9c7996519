#include "text/tokenizer_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/file.h"
#include "core/progress.h"
#include "text/error_test_support.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

const std::string kSpecials = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";

Json small_json() {
  const auto added = [](const char* content, int id) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  return {{"version", "1.0"},
          {"truncation", {{"max_length", 3}}},
          {"padding", nullptr},
          {"added_tokens",
           {added("[PAD]", 0), added("[UNK]", 1), added("[CLS]", 2), added("[SEP]", 3)}},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "BertProcessing"}, {"sep", {"[SEP]", 3}}, {"cls", {"[CLS]", 2}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab",
             {{"[PAD]", 0}, {"[UNK]", 1}, {"[CLS]", 2}, {"[SEP]", 3}, {"a", 4}, {"##b", 5}}}}}};
}

std::vector<int32_t> ids(const Tokenizer& tokenizer, std::string_view text) {
  Encoding out;
  tokenizer.encode(text, std::nullopt, {}, out);
  return out.ids;
}

TEST(VocabFile, BadFilesAreNamedExactly) {
  const std::pair<std::string, std::string> rows[] = {
      {"", "v: empty, expected one token on each line"},
      {"\xEF\xBB\xBF\r\n\n", "v: empty, expected one token on each line"},
      {kSpecials + "a\nb\na\n", "v: token \"a\" stands on line 5 and again on line 7"},
      {kSpecials + "\nb\n", "v: line 5 is blank, expected one token on each line"},
      {kSpecials + "b\xFF\n", "v: line 5, byte 2: not valid UTF-8"},
      {kSpecials + "b\rc\n", "v: line 5 has a carriage return inside the token"},
      {"[PAD]\n[CLS]\n[SEP]\n", "v: the unknown token \"[UNK]\" is missing"},
      {"[PAD]\n[UNK]\n[SEP]\n", "v: the classification token \"[CLS]\" is missing"},
      {"[PAD]\n[UNK]\n[CLS]\n", "v: the separator token \"[SEP]\" is missing"},
      {"[UNK]\n[CLS]\n[SEP]\n", "v: the padding token \"[PAD]\" is missing"},
  };
  expect_errors(rows, [](const auto& text) { parse_vocab(text, "v"); });
}

TEST(VocabFile, ByteOrderMarkAndLineEndsDoNotMatter) {
  const uint64_t plain = parse_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", "v")->fingerprint();
  EXPECT_EQ(
      parse_vocab("\xEF\xBB\xBF[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\na\r\n", "v")->fingerprint(),
      plain);
  EXPECT_EQ(parse_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\na", "v")->fingerprint(), plain);
  EXPECT_EQ(parse_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n\n\n", "v")->fingerprint(), plain);
}

TEST(TokenizerConfig, ChangesWhatItNames) {
  const std::string vocab = "<pad>\n<unk>\n<s>\n</s>\nA\na\n";
  const Json config = {
      {"do_lower_case", false}, {"model_max_length", 512},
      {"unk_token", "<unk>"},   {"pad_token", {{"content", "<pad>"}, {"lstrip", false}}},
      {"cls_token", "<s>"},     {"sep_token", "</s>"}};
  const auto tokenizer = parse_vocab(vocab, "v", {config});
  EXPECT_EQ(ids(*tokenizer, "A</s>x"), (std::vector<int32_t>{2, 4, 3, 1, 3}));
  EXPECT_EQ(tokenizer->model_max_length(), 512u);
  EXPECT_EQ(tokenizer->special_ids().mask, -1);
  const auto refused = [&](Json extra) {
    extra.update(config);
    return error_of([&] { parse_vocab(vocab, "v", {extra, "c"}); });
  };
  EXPECT_EQ(refused({{"tokenizer_class", "BertJapaneseTokenizer"}}),
            "c: unsupported tokenizer_class \"BertJapaneseTokenizer\" for a vocab.txt");
  EXPECT_EQ(refused({{"do_basic_tokenize", false}}),
            "c: do_basic_tokenize must be true (false is not supported), found false");
  EXPECT_EQ(refused({{"strip_accents", 1}}), "c: strip_accents must be true or false, found 1");
  EXPECT_EQ(refused({{"added_tokens_decoder", {{"9", {{"content", "x"}}}}}}),
            "v: added token \"x\" has id 9, expected 6 (the next free id)");
}

TEST(TokenizerJson, LoadsAndIgnoresTheLengthsOfTheFile) {
  const auto tokenizer = parse_tokenizer_json(small_json().dump(), "t");
  EXPECT_EQ(ids(*tokenizer, "AB a ab x"), (std::vector<int32_t>{2, 4, 5, 4, 4, 5, 1, 3}));
  EXPECT_EQ(tokenizer->fingerprint(), parse_vocab(kSpecials + "a\n##b", "v")->fingerprint());
}

struct Edit {
  std::string pointer;
  Json value;
  std::string message;
};

TEST(TokenizerJson, WhatIsNotUnderstoodIsRefusedByName) {
  const Edit edits[] = {
      {"/normalizer/type", "NFC", "t: unsupported normalizer \"NFC\" (supported: BertNormalizer)"},
      {"/normalizer/extra", 1, "t: unsupported field normalizer.extra"},
      {"/normalizer/lowercase", 3, "t: normalizer.lowercase must be true or false, found 3"},
      {"/pre_tokenizer", nullptr, "t: pre_tokenizer is missing (supported: BertPreTokenizer)"},
      {"/pre_tokenizer/type", "ByteLevel",
       "t: unsupported pre_tokenizer \"ByteLevel\" (supported: BertPreTokenizer)"},
      {"/post_processor/type", "RobertaProcessing",
       "t: unsupported post_processor \"RobertaProcessing\" (supported: TemplateProcessing, "
       "BertProcessing)"},
      {"/post_processor/cls",
       {"[CLS]", 77},
       "t: the post-processor inserts id 77, but ids end at 5"},
      {"/decoder/type", "ByteLevel", "t: unsupported decoder \"ByteLevel\" (supported: WordPiece)"},
      {"/model/type", "WordLevel",
       "t: unsupported model type \"WordLevel\" (supported: WordPiece, BPE, Unigram)"},
      {"/model/merges", Json::array(), "t: unsupported field model.merges"},
      {"/model/unk_token", "<unk>", "t: the unknown token \"<unk>\" is not in the vocabulary"},
      {"/model/max_input_chars_per_word", 1e9,
       "t: model.max_input_chars_per_word must be an integer from 0 to 10000, found 1000000000.0"},
      {"/model/vocab", Json::object(), "t: model.vocab is empty"},
      {"/model/vocab/a", 5, "t: tokens \"##b\" and \"a\" have the same id 5"},
      {"/model/vocab/a", 6,
       "t: token \"a\" has id 6, expected an integer from 0 to 5 (6 tokens, without gaps)"},
      {"/model/vocab/a", -1,
       "t: token \"a\" has id -1, expected an integer from 0 to 5 (6 tokens, without gaps)"},
      {"/model/vocab/a", 18446744073709551615u,
       "t: token \"a\" has id 18446744073709551615, expected an integer from 0 to 5 (6 tokens, "
       "without gaps)"},
      {"/model/vocab/a", "4",
       "t: token \"a\" has id \"4\", expected an integer from 0 to 5 (6 tokens, without gaps)"},
      {"/added_tokens/0/id", 3, "t: added tokens \"[PAD]\" and \"[SEP]\" have the same id 3"},
      {"/added_tokens/0/id", 9,
       "t: added token \"[PAD]\" has id 9, expected 0 (its id in the vocabulary)"},
      {"/added_tokens/3",
       {{"id", 6}, {"content", "[CLS]"}},
       "t: added token \"[CLS]\" occurs twice"},
      {"/added_tokens/0/odd", true, "t: unsupported field added_tokens[0].odd"},
      {"/version", "2.0", "t: version must be \"1.0\", found \"2.0\""},
      {"/surprise", 1, "t: unsupported field surprise"},
      {"/model", 1, "t: model must be an object, found 1"},
  };
  for (const Edit& edit : edits) {
    Json json = small_json();
    json[Json::json_pointer(edit.pointer)] = edit.value;
    EXPECT_EQ(error_of([&] { parse_tokenizer_json(json.dump(), "t"); }), edit.message)
        << edit.pointer;
  }
}

TEST(TokenizerJson, TemplatesAreGeneral) {
  Json json = small_json();
  const auto special = [](const char* name, int type) {
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {sequence("A", 0), special("end", 2)}},
      {"pair", {sequence("B", 1), sequence("A", 0)}},
      {"special_tokens",
       {{"end", {{"id", "end"}, {"ids", {3, 3}}, {"tokens", {"[SEP]", "[SEP]"}}}}}}};
  const auto tokenizer = parse_tokenizer_json(json.dump(), "t");
  Encoding out;
  tokenizer->encode("a", std::nullopt, {}, out);
  EXPECT_EQ(out.ids, (std::vector<int32_t>{4, 3, 3}));
  EXPECT_EQ(out.type_ids, (std::vector<int32_t>{0, 2, 2}));
  tokenizer->encode("a", "ab", {}, out);
  EXPECT_EQ(out.ids, (std::vector<int32_t>{4, 5, 4}));
  json["post_processor"]["pair"] = {sequence("A", 0)};
  EXPECT_EQ(error_of([&] { parse_tokenizer_json(json.dump(), "t"); }),
            "t: post_processor.pair must hold the sequences A and B once each");
}

class SavedFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("snug-text-" + std::to_string(::getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const char* name, const std::string& text) {
    write_file_atomically(folder_ / name, text);
  }

  fs::path folder_;
};

TEST_F(SavedFolder, LoadsTheSameFromEitherFile) {
  const Json config = {{"do_lower_case", false}, {"model_max_length", 128}};
  const auto original = parse_vocab(kSpecials + "[MASK]\nA\n##b\n\"q\n", "v", {config});
  original->save(folder_);
  const auto loaded = load_tokenizer(folder_);
  EXPECT_EQ(loaded->fingerprint(), original->fingerprint());
  EXPECT_EQ(loaded->model_max_length(), 128u);
  fs::remove(folder_ / "tokenizer.json");
  EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), original->fingerprint());
}

TEST_F(SavedFolder, KeepsWhatOnlyTokenizerJsonCanSay) {
  Json json = small_json();
  json["normalizer"]["clean_text"] = false;
  json["model"]["max_input_chars_per_word"] = 3;
  json["post_processor"] = nullptr;
  json["added_tokens"].push_back({{"id", 6},
                                  {"content", "New"},
                                  {"single_word", true},
                                  {"lstrip", true},
                                  {"rstrip", false},
                                  {"normalized", true},
                                  {"special", false}});
  const auto original = parse_tokenizer_json(json.dump(), "t");
  original->save(folder_);
  const auto loaded = load_tokenizer(folder_);
  EXPECT_EQ(loaded->fingerprint(), original->fingerprint());
  EXPECT_EQ(ids(*loaded, "a new ab abbb"), ids(*original, "a new ab abbb"));
}

TEST_F(SavedFolder, ConfigOverridesTokenizerJson) {
  set_quiet(true);
  write("tokenizer.json", small_json().dump());
  write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(ids(*load_tokenizer(folder_), "A"), (std::vector<int32_t>{2, 1, 3}));
  set_quiet(false);
}

TEST_F(SavedFolder, SaysWhatIsMissing) {
  EXPECT_EQ(error_of([&] { load_tokenizer(folder_); }),
            folder_.string() +
                ": no tokenizer here, expected tokenizer.json, vocab.txt, vocab.json with "
                "merges.txt, or a SentencePiece .model");
  write("spiece.model", "");
  EXPECT_EQ(error_of([&] { load_tokenizer(folder_); }),
            (folder_ / "spiece.model").string() + ": the model has no pieces");
  write("vocab.txt", kSpecials);
  write("added_tokens.json", "{}");
  EXPECT_NE(error_of([&] { load_tokenizer(folder_); }).find("added_tokens.json"),
            std::string::npos);
  write("tokenizer.json", "{");
  EXPECT_NE(error_of([&] { load_tokenizer(folder_); }).find("tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace snug
