#include <gtest/gtest.h>
#include <unistd.h>

#include "core/file.h"
#include "core/progress.h"
#include "text/bpe_test_support.h"
#include "text/error_test_support.h"
#include "text/tokenizer_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

using Ids = std::vector<int32_t>;

Ids ids(const Tokenizer& tokenizer, std::string_view text) {
  Encoding out;
  tokenizer.encode(text, std::nullopt, {}, out);
  return out.ids;
}

std::unique_ptr<Tokenizer> parse(const std::string& vocab, const std::string& merges,
                                 const Json& config = nullptr) {
  return parse_vocab_and_merges({vocab, "v"}, {merges, "m"}, {config, "c"});
}

TEST(VocabAndMerges, TellTheFamilyApart) {
  const std::string gpt2 = vocab_json(small_gpt2()), roberta = vocab_json(small_roberta());
  const std::string merges = merges_txt(small_gpt2());
  EXPECT_EQ(ids(*parse(gpt2, merges), "hello"), (Ids{259}));
  EXPECT_EQ(ids(*parse(roberta, merges), "hello"), (Ids{267, 259, 269}));
  EXPECT_EQ(ids(*parse(roberta, merges, {{"tokenizer_class", "GPT2TokenizerFast"}}), "hello"),
            (Ids{259}));
  EXPECT_EQ(ids(*parse(roberta, merges, {{"bos_token", "<|endoftext|>"}}), "hello"), (Ids{259}));
  EXPECT_EQ(ids(*parse(roberta, merges, {{"tokenizer_class", "PreTrainedTokenizerFast"}}), "hello"),
            (Ids{267, 259, 269}));
  EXPECT_EQ(parse(gpt2, merges)->special_ids().eos, 267);
  EXPECT_EQ(parse(gpt2, merges)->special_ids().pad, -1);
}

TEST(VocabAndMerges, ConfigurationChangesWhatItNames) {
  const std::string vocab = vocab_json(small_roberta()), merges = merges_txt(small_roberta());
  const Json config = {{"add_prefix_space", true},
                       {"model_max_length", 512},
                       {"mask_token", {{"content", "<mask>"}, {"lstrip", true}}},
                       {"added_tokens_decoder", {{"272", {{"content", "<new>"}}}}}};
  const auto tokenizer = parse(vocab, merges, config);
  EXPECT_EQ(ids(*tokenizer, "hello<new>"), (Ids{267, 260, 272, 269}));
  EXPECT_EQ(tokenizer->model_max_length(), 512u);
  EXPECT_EQ(tokenizer->vocab_size(), 273);
  EXPECT_EQ(error_of([&] {
              parse(vocab, merges, {{"tokenizer_class", "CLIPTokenizer"}});
            }),
            "c: unsupported tokenizer_class \"CLIPTokenizer\" for a vocab.json");
  EXPECT_EQ(error_of([&] {
              parse(vocab, merges, {{"add_bos_token", true}});
            }),
            "c: add_bos_token must be false (true is supported only with a tokenizer.json), found "
            "true");
  EXPECT_EQ(error_of([&] {
              parse(vocab, merges, {{"cls_token", "<cls>"}});
            }),
            "v: the classification token \"<cls>\" is missing");
}

TEST(VocabAndMerges, LineEndsAndTheVersionLineDoNotMatter) {
  const std::string vocab = vocab_json(small_gpt2()), merges = merges_txt(small_gpt2());
  const uint64_t plain = parse(vocab, merges)->fingerprint();
  EXPECT_EQ(parse(vocab, merges.substr(merges.find('\n') + 1))->fingerprint(), plain);
  EXPECT_EQ(parse("\xEF\xBB\xBF" + vocab, "\xEF\xBB\xBF" + merges + "\n\r\n")->fingerprint(),
            plain);
  std::string crlf;
  for (char c : merges) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_EQ(parse(vocab, crlf)->fingerprint(), plain);
}

TEST(VocabAndMerges, BadMergesAreNamedExactly) {
  const std::string vocab = vocab_json(small_gpt2());
  const std::pair<std::string, std::string> rows[] = {
      {"h e\nhe\n", "m: line 2: expected two tokens with one space between, found \"he\""},
      {"#version: 0.2\nh e l\n",
       "m: line 2: expected two tokens with one space between, found \"h e l\""},
      {"h e\n\nl l\n", "m: line 2: expected two tokens with one space between, found \"\""},
      {"h \n", "m: line 1: a merge needs two tokens, found an empty one"},
      {"h e\nx yz\n", "m: line 2: the merge's token \"yz\" is not in the vocabulary"},
      {"h e\nx y\n", "m: line 2: the merge's token \"xy\" is not in the vocabulary"},
      {"\xFF e\n", "m: line 1: the merge's token \"\uFFFD\" is not in the vocabulary"},
  };
  expect_errors(rows, [&](const auto& merges) { parse(vocab, merges); });
  EXPECT_EQ(error_of([&] {
              BpeVocabulary odd = small_gpt2();
              odd.tokens.insert(odd.tokens.end(), {"\u4E2D", "\u4E2Da"});
              parse(vocab_json(odd), "\u4E2D a");
            }),
            "m: line 1: the merge's token \"\u4E2D\" does not stand for bytes");
}

TEST(VocabAndMerges, BadVocabulariesAreNamedExactly) {
  const std::string space = spell_bytes(" ");
  Json lacks = Json::parse(vocab_json(small_vocabulary()));
  lacks.erase("a");
  lacks["b0"] = 64;
  const std::pair<std::string, std::string> rows[] = {
      {"{}", "v: the vocabulary is empty"},
      {"[]", "v: the document must be an object, found a list"},
      {R"({"a": 0, "b": 2})",
       "v: token \"b\" has id 2, expected an integer from 0 to 1 (2 tokens, without gaps)"},
      {R"({"a": 0, "b": 0})", "v: tokens \"a\" and \"b\" have the same id 0"},
      {R"({"a": 0, "b": 0.5})",
       "v: token \"b\" has id 0.5, expected an integer from 0 to 1 (2 tokens, without gaps)"},
      {R"({"": 0})", "v: the token with id 0 is empty"},
      {lacks.dump(),
       "v: the vocabulary lacks \"a\", which is byte 0x61; byte-level BPE needs all 256"},
  };
  expect_errors(rows, [](const auto& vocab) { parse(vocab, ""); });
  EXPECT_NE(error_of([&] { parse(R"({"a": 0, "a": 1})", ""); }).find("v:"), std::string::npos);
  EXPECT_NE(error_of([&] { parse("{", ""); }).find("v:"), std::string::npos);
  EXPECT_EQ(error_of([&] {
              parse(vocab_json(small_gpt2()), "", {{"tokenizer_class", "RobertaTokenizer"}});
            }),
            "v: the classification token \"<s>\" is missing");
}

TEST(BpeJson, MergesMayBePairsAndTheTypeMayBeMissing) {
  Json json = small_bpe_json();
  const uint64_t plain = parse_tokenizer_json(json.dump(), "t")->fingerprint();
  json["model"].erase("type");
  EXPECT_EQ(parse_tokenizer_json(json.dump(), "t")->fingerprint(), plain);
  Json pairs = Json::array();
  for (const auto& [left, right] : small_gpt2().merges) pairs.push_back(Json::array({left, right}));
  json["model"]["merges"] = pairs;
  json["model"]["ignore_merges"] = false;
  json["model"]["byte_fallback"] = false;
  json["model"]["continuing_subword_prefix"] = nullptr;
  EXPECT_EQ(parse_tokenizer_json(json.dump(), "t")->fingerprint(), plain);
}

TEST(BpeJson, WhatIsNotUnderstoodIsRefusedByName) {
  struct Edit {
    std::string pointer;
    Json value;
    std::string message;
  };
  const Json processor = {{"type", "ByteLevel"}, {"trim_offsets", true}};
  const Edit edits[] = {
      {"/normalizer",
       {{"type", "NFC"}},
       "t: unsupported normalizer \"NFC\" (supported for BPE: none)"},
      {"/pre_tokenizer", nullptr, "t: pre_tokenizer is missing (supported: ByteLevel)"},
      {"/pre_tokenizer/type", "Split",
       "t: unsupported pre_tokenizer \"Split\" (supported: ByteLevel)"},
      {"/pre_tokenizer/pattern", "x", "t: unsupported field pre_tokenizer.pattern"},
      {"/pre_tokenizer/use_regex", 1, "t: pre_tokenizer.use_regex must be true or false, found 1"},
      {"/decoder/type", "WordPiece", "t: unsupported decoder \"WordPiece\" (supported: ByteLevel)"},
      {"/post_processor/type", "Odd",
       "t: unsupported post_processor \"Odd\" (supported: TemplateProcessing, BertProcessing, "
       "RobertaProcessing, ByteLevel, Sequence)"},
      {"/post_processor",
       {{"type", "Sequence"}, {"processors", {processor, processor}}},
       "t: post_processor.processors[1].trim_offsets trims offsets that have been trimmed before "
       "(not supported)"},
      {"/post_processor",
       {{"type", "Sequence"},
        {"processors",
         {{{"type", "BertProcessing"}, {"cls", {"a", 64}}, {"sep", {"a", 64}}}, processor}}},
       "t: post_processor.processors[1].type follows one that adds special tokens (not supported)"},
      {"/post_processor",
       {{"type", "RobertaProcessing"}, {"cls", {"a", 64}}, {"sep", {"x", 999}}},
       "t: the post-processor inserts id 999, but ids end at 267"},
      {"/model/dropout", 0.1, "t: model.dropout must be off (not supported), found 0.1"},
      {"/model/end_of_word_suffix", "</w>",
       "t: model.end_of_word_suffix must be off (not supported), found \"</w>\""},
      {"/model/byte_fallback", true,
       "t: model.byte_fallback must be off (not supported), found true"},
      {"/model/ignore_merges", true,
       "t: model.ignore_merges must be off (not supported), found true"},
      {"/model/odd", 1, "t: unsupported field model.odd"},
      {"/model/merges", "h e", "t: model.merges must be a list, found \"h e\""},
      {"/model/merges/1", 5, "t: model.merges[1] must be \"left right\" or a pair of tokens"},
      {"/model/merges/1",
       {"l", "q"},
       "t: model.merges[1]: the merge's token \"lq\" is not in the vocabulary"},
      {"/model/merges/1", "l q",
       "t: model.merges[1]: the merge's token \"lq\" is not in the vocabulary"},
      {"/added_tokens/0/id", 300,
       "t: added token \"<|endoftext|>\" has id 300, expected 267 (its id in the vocabulary)"},
  };
  for (const Edit& edit : edits) {
    Json json = small_bpe_json();
    json[Json::json_pointer(edit.pointer)] = edit.value;
    EXPECT_EQ(error_of([&] { parse_tokenizer_json(json.dump(), "t"); }), edit.message)
        << edit.pointer;
  }
}

class BpeFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("snug-bpe-" + std::to_string(::getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const char* name, const std::string& text) {
    write_file_atomically(folder_ / name, text);
  }

  fs::path folder_;
};

TEST_F(BpeFolder, LoadsTheSameFromEitherKindOfFiles) {
  for (const BpeFamily family : {BpeFamily::kGpt2, BpeFamily::kRoberta}) {
    const auto original =
        make_bpe_tokenizer(family == BpeFamily::kGpt2 ? small_gpt2() : small_roberta(), family);
    original->save(folder_);
    EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), original->fingerprint());
    fs::remove(folder_ / "tokenizer.json");
    EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), original->fingerprint());
    fs::remove(folder_ / "tokenizer_config.json");
    fs::remove(folder_ / "special_tokens_map.json");
    EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), original->fingerprint());
  }
}

TEST_F(BpeFolder, KeepsWhatOnlyTokenizerJsonCanSay) {
  Json json = small_bpe_json();
  json["pre_tokenizer"]["use_regex"] = false;
  json["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}},
        {{"type", "BertProcessing"}, {"cls", {"a", 64}}, {"sep", {"b", 65}}}}}};
  const auto original = parse_tokenizer_json(json.dump(), "t");
  EXPECT_EQ(ids(*original, "hello  "), (Ids{64, 259, 266, 65}));
  original->save(folder_);
  EXPECT_FALSE(fs::exists(folder_ / "vocab.json"));
  EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), original->fingerprint());
}

TEST_F(BpeFolder, ConfigOverridesTokenizerJson) {
  set_quiet(true);
  write("tokenizer.json", small_bpe_json().dump());
  write("tokenizer_config.json", R"({"add_prefix_space": true})");
  const auto tokenizer = load_tokenizer(folder_);
  set_quiet(false);
  EXPECT_EQ(ids(*tokenizer, "hello"), (Ids{260}));
  tokenizer->save(folder_);
  EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), tokenizer->fingerprint());
}

TEST_F(BpeFolder, ReadsTheNamesOfOpenAiAndSaysWhatIsMissing) {
  write("encoder.json", vocab_json(small_gpt2()));
  EXPECT_EQ(error_of([&] { load_tokenizer(folder_); }),
            folder_.string() + ": vocab.bpe is missing; BPE needs both encoder.json and vocab.bpe");
  write("vocab.bpe", merges_txt(small_gpt2()));
  EXPECT_EQ(ids(*load_tokenizer(folder_), "hello"), (Ids{259}));
  write("merges.txt", "");
  EXPECT_EQ(error_of([&] { load_tokenizer(folder_); }),
            folder_.string() + ": vocab.json is missing; BPE needs both vocab.json and merges.txt");
  write("vocab.json", vocab_json(small_gpt2()));
  EXPECT_EQ(ids(*load_tokenizer(folder_), "he"), (Ids{71, 68}));  // no merges at all
}

}  // namespace
}  // namespace snug
