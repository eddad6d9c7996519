#include "text/unigram.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/error.h"
#include "core/progress.h"
#include "text/tokenizer_files.h"

namespace snug {
namespace {

using Ids = std::vector<int32_t>;
using Spans = std::vector<Span>;

Json metaspace(const char* scheme = "always", bool split = true) {
  return {{"type", "Metaspace"},
          {"replacement", "\u2581"},
          {"prepend_scheme", scheme},
          {"split", split}};
}

// <unk> 0, </s> 1, _ 2, a 3, b 4, ab 5, _a 6, _ab 7, c 8
Json small_json() {
  const auto special = [](const char* content, int id) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {special("<unk>", 0), special("</s>", 1)}},
          {"normalizer", {{"type", "Lowercase"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"}, {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace()}}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
              {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
            {"pair",
             {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "B"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {1}}, {"tokens", {"</s>"}}}}}}}},
          {"decoder", metaspace()},
          {"model",
           {{"type", "Unigram"},
            {"unk_id", 0},
            {"vocab", Json::array({Json::array({"<unk>", 0.0}), Json::array({"</s>", 0.0}),
                                   Json::array({"\u2581", -3.0}), Json::array({"a", -2.0}),
                                   Json::array({"b", -2.5}), Json::array({"ab", -4.6}),
                                   Json::array({"\u2581a", -2.2}), Json::array({"\u2581ab", -6.0}),
                                   Json::array({"c", -9.0})})}}}};
}

std::unique_ptr<Tokenizer> parse(const Json& json) {
  return parse_tokenizer_json(json.dump(), "t");
}

Encoding encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  options.special_tokens = false;
  options.with_offsets = true;
  Encoding out, without;
  tokenizer.encode(text, std::nullopt, options, out);
  options.with_offsets = false;
  tokenizer.encode(text, std::nullopt, options, without);
  EXPECT_EQ(out.ids, without.ids) << text;
  return out;
}

struct Row {
  std::string text;
  Ids ids;
  Spans spans;
};

TEST(Unigram, IdsAndOffsets) {
  const auto tokenizer = parse(small_json());
  const Row rows[] = {
      {"", {}, {}},
      {" \n\u3000", {}, {}},
      {"A", {6}, {{0, 1}}},
      {"ab", {6, 4}, {{0, 1}, {1, 2}}},  // better than the longer piece
      {"  aB\tb", {6, 4, 2, 4}, {{2, 3}, {3, 4}, {5, 6}, {5, 6}}},
      {"axyb", {6, 0, 4}, {{0, 1}, {1, 3}, {3, 4}}},  // unknown neighbours are one
      {"\u4E2D\u6587", {2, 0}, {{0, 1}, {0, 2}}},
      {"a\u2581a", {6, 6}, {{0, 1}, {1, 3}}},
      {"\u2581a", {6}, {{0, 2}}},
      {"a</s>a", {6, 1, 6}, {{0, 1}, {1, 5}, {5, 6}}},
      {"\xFF"
       "b",
       {2, 0, 4},
       {{0, 1}, {0, 1}, {1, 2}}},
  };
  for (int round = 0; round < 2; ++round) {  // the second time from the cache
    for (const Row& row : rows) {
      const Encoding got = encode(*tokenizer, row.text);
      EXPECT_EQ(got.ids, row.ids) << row.text;
      EXPECT_EQ(got.offsets, row.spans) << row.text;
    }
  }
}

TEST(Unigram, TheSpaceBeforeWords) {
  Json json = small_json();
  const auto ids_with = [&](const Json& splitter, std::string_view text) {
    json["pre_tokenizer"] = splitter;
    return encode(*parse(json), text).ids;
  };
  EXPECT_EQ(ids_with(metaspace("always"), "a </s>a"), (Ids{6, 2, 1, 6}));
  EXPECT_EQ(ids_with(metaspace("first"), "a </s>a"), (Ids{6, 2, 1, 3}));
  EXPECT_EQ(ids_with(metaspace("never"), "a a"), (Ids{3, 6}));
  EXPECT_EQ(ids_with(metaspace("never", false), "a a"), (Ids{3, 6}));
  EXPECT_EQ(ids_with({{"type", "WhitespaceSplit"}}, "a a"), (Ids{3, 3}));
  EXPECT_EQ(ids_with(nullptr, "a a"), (Ids{3, 0, 3}));
}

TEST(Unigram, UnknownCharactersMayBeTheirBytes) {
  Json json = small_json();
  json["model"]["byte_fallback"] = true;
  for (int byte = 0; byte < 256; ++byte) {
    json["model"]["vocab"].push_back(Json::array({fmt::format("<0x{:02X}>", byte), -20.0}));
  }
  const Encoding got = encode(*parse(json), "a\u00E9");
  EXPECT_EQ(got.ids, (Ids{6, 9 + 0xC3, 9 + 0xA9}));
  EXPECT_EQ(got.offsets, (Spans{{0, 1}, {1, 2}, {1, 2}}));
}

TEST(Unigram, DecodesAndTruncates) {
  const auto tokenizer = parse(small_json());
  EXPECT_EQ(tokenizer->decode(Ids{6, 4, 6, 1}, false), "ab a</s>");
  EXPECT_EQ(tokenizer->decode(Ids{6, 4, 6, 1}, true), "ab a");
  EXPECT_EQ(tokenizer->special_ids().eos, 1);
  EXPECT_EQ(tokenizer->special_ids().unk, 0);
  std::string text;
  for (int i = 0; i < 4000; ++i) text += i % 5 == 0 ? "ab " : i % 7 == 0 ? "\u00E9 a" : "a b";
  const Encoding whole = encode(*tokenizer, text);
  for (size_t length : {1, 100, 1001, 5000}) {
    const Encoding cut = encode(*tokenizer, text, {.max_length = length});
    EXPECT_EQ(cut.ids, Ids(whole.ids.begin(), whole.ids.begin() + length));
    EXPECT_EQ(cut.offsets, Spans(whole.offsets.begin(), whole.offsets.begin() + length));
  }
}

struct Edit {
  std::string pointer;
  Json value;
  std::string message;
};

TEST(UnigramJson, WhatIsNotUnderstoodIsRefusedByName) {
  const Edit edits[] = {
      {"/model/vocab", Json::array(), "t: model.vocab is empty"},
      {"/model/vocab/3", "a", "t: model.vocab[3] must be a piece and its score"},
      {"/model/vocab/3", Json::array({"", 1.0}), "t: the piece with id 3 is empty"},
      {"/model/vocab/3", Json::array({"b", 1.0}), "t: token \"b\" occurs twice"},
      {"/model/unk_id", 9, "t: model.unk_id must be an integer from 0 to 8, found 9"},
      {"/model/fuse_unk", true, "t: unsupported field model.fuse_unk"},
      {"/pre_tokenizer",
       {{"type", "Digits"}},
       "t: unsupported pre_tokenizer \"Digits\" (supported for Unigram: WhitespaceSplit, "
       "Metaspace, each once in this order)"},
      {"/pre_tokenizer/pretokenizers/1/replacement", "ab",
       "t: pre_tokenizer.pretokenizers[1].replacement must be one character, found \"ab\""},
      {"/pre_tokenizer/pretokenizers/1/prepend_scheme", "often",
       "t: pre_tokenizer.pretokenizers[1].prepend_scheme must be always, first or never, found "
       "\"often\""},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", false,
       "t: pre_tokenizer.pretokenizers[1].add_prefix_space must be true, since prepend_scheme is "
       "not never, found false"},
      {"/decoder/type", "WordPiece",
       "t: unsupported decoder \"WordPiece\" (supported for Unigram: Metaspace)"},
      {"/post_processor/type", "RobertaProcessing",
       "t: unsupported post_processor \"RobertaProcessing\" (supported: TemplateProcessing, "
       "BertProcessing)"},
      {"/added_tokens/1/id", 5,
       "t: added token \"</s>\" has id 5, expected 1 (its id in the vocabulary)"},
  };
  for (const Edit& edit : edits) {
    Json json = small_json();
    json[Json::json_pointer(edit.pointer)] = edit.value;
    try {
      parse(json);
      ADD_FAILURE() << "no error: " << edit.pointer;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      EXPECT_EQ(error.what(), edit.message);
    }
  }
  Json json = small_json();
  json["model"]["unk_id"] = nullptr;
  EXPECT_EQ(encode(*parse(json), "ab").ids, (Ids{6, 4}));
  EXPECT_THROW(encode(*parse(json), "x"), Error);
}

TEST(UnigramJson, SavesAndLoadsAgain) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("snug-unigram-" + std::to_string(::getpid()));
  Json json = small_json();
  json["added_tokens"].push_back({{"id", 9},
                                  {"content", "New"},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", true},
                                  {"special", false}});
  const auto original = parse(json);
  EXPECT_EQ(encode(*original, "a NEW b").ids, (Ids{6, 9, 2, 4}));
  original->save(folder);
  const auto loaded = load_tokenizer(folder);
  EXPECT_EQ(loaded->fingerprint(), original->fingerprint());
  EXPECT_EQ(encode(*loaded, "a NEW b").ids, (Ids{6, 9, 2, 4}));
  std::filesystem::remove_all(folder);
  json["model"]["vocab"][3][1] = -2.25;
  EXPECT_NE(parse(json)->fingerprint(), original->fingerprint());
  json["model"].erase("type");  // early files do not have it
  EXPECT_EQ(encode(*parse(json), "ab").ids, (Ids{6, 4}));
}

}  // namespace
}  // namespace snug
