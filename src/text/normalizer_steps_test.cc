#include "text/normalizer_steps.h"

#include <gtest/gtest.h>

#include "text/charsmap.h"
#include "text/error_test_support.h"

namespace snug {
namespace {

using Origins = std::vector<uint32_t>;

NormalizerSteps steps(const Json& json) { return {JsonFields(json, "t", "normalizer"), "t"}; }

Json replace(const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}

Json collapse(const char* content) {
  return {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", content}};
}

struct Row {
  Json step;
  std::string text, result;
  Origins origin;  // by code point of the result
};

// As the reference aligns them.
TEST(NormalizerSteps, EveryCharacterKnowsItsOrigin) {
  const Json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const Row rows[] = {
      {replace("``", "\""), "a``b``", "a\"b\"", {0, 2, 3, 5}},
      {replace("a", ""), "abab", "bb", {1, 3}},
      {replace(" ", "\u2581\u2581"), "a b", "a\u2581\u2581b", {0, 1, 1, 2}},
      {collapse(" "), "a   b c", "a b c", {0, 3, 4, 5, 6}},
      {{{"type", "Lowercase"}}, "A\u0130B", "ai\u0307b", {0, 1, 1, 2}},
      {{{"type", "StripAccents"}}, "e\u0301\u0903x", "ex", {0, 3}},
      {{{"type", "NFKD"}}, "\uFB01\u00E9", "fie\u0301", {0, 0, 1, 1}},
      {{{"type", "NFD"}}, "\uFB01\u00E9", "\uFB01e\u0301", {0, 1, 1}},
      {{{"type", "NFC"}}, "e\u0301e\u0323\u0301\uFB01", "\u00E9\u1EB9\u0301\uFB01", {0, 2, 4, 5}},
      {{{"type", "NFKC"}}, "\uFB01\u1100\u1161\u11A8", "fi\uAC01", {0, 0, 1}},
      {{{"type", "Nmt"}}, "a\u0001\u200Bb\u007F", "a b", {0, 2, 3}},
      {strip, " \u3000a b\n", "a b", {2, 3, 4}},
      {{{"type", "Prepend"}, {"prepend", "_"}}, "ab", "_ab", {0, 0, 1}},
      {{{"type", "Prepend"}, {"prepend", "_"}}, "", "", {}},
      {{{"type", "Sequence"}, {"normalizers", {replace("a", "B"), {{"type", "Lowercase"}}}}},
       "xaA",
       "xba",
       {0, 1, 2}},
  };
  for (const Row& row : rows) {
    NormalizedText text;
    text.with_origin = true;
    uint32_t code_point = 10;
    assign_text(row.text, code_point, text);
    EXPECT_EQ(code_point, 10 + count_code_points(row.text));
    steps(row.step).apply(text);
    EXPECT_EQ(text.bytes, row.result) << row.step;
    ASSERT_EQ(text.origin.size(), text.bytes.size()) << row.step;
    Origins origins;
    for (size_t pos = 0; pos < text.bytes.size(); next_code_point(text.bytes, pos)) {
      origins.push_back(text.origin[pos] - 10);
    }
    EXPECT_EQ(origins, row.origin) << row.step;
    EXPECT_EQ(steps(row.step).normalize(row.text), row.result) << row.step;
  }
}

TEST(NormalizerSteps, WhatIsNotUnderstoodIsRefusedByName) {
  const std::pair<Json, std::string> rows[] = {
      {{{"type", "BertNormalizer"}},
       "t: unsupported normalizer \"BertNormalizer\" (supported: Sequence, Replace, NFC, NFD, "
       "NFKC, "
       "NFKD, Nmt, StripAccents, Lowercase, Precompiled, Strip, Prepend)"},
      {{{"type", "NFC"}, {"odd", 1}}, "t: unsupported field normalizer.odd"},
      {{{"type", "Sequence"}, {"normalizers", {{{"type", "Odd"}}}}},
       "t: unsupported normalizer \"Odd\" (supported: Sequence, Replace, NFC, NFD, NFKC, NFKD, "
       "Nmt, "
       "StripAccents, Lowercase, Precompiled, Strip, Prepend)"},
      {{{"type", "Sequence"}, {"normalizers", {1}}},
       "t: normalizer.normalizers[0] must be an object, found 1"},
      {{{"type", "Replace"}, {"pattern", {{"Regex", "\\s+"}}}, {"content", ""}},
       "t: unsupported normalizer.pattern.Regex \"\\s+\" (supported: \" {2,}\", and any String)"},
      {replace("", "x"),
       "t: normalizer.pattern.String must be a text that is not empty, found \"\""},
      {{{"type", "Precompiled"}, {"precompiled_charsmap", "?"}},
       "t: normalizer.precompiled_charsmap must be base64, found \"?\""},
      {{{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}},
       "t: normalizer.precompiled_charsmap is malformed: it is shorter than its header"},
  };
  expect_errors(rows, steps);
  Json deep = {{"type", "NFC"}};
  for (int i = 0; i < 100; ++i) deep = {{"type", "Sequence"}, {"normalizers", {deep}}};
  EXPECT_NE(error_of([&] { steps(deep); }), "no error");
}

TEST(Charsmap, WhatLeadsOutOfItIsRefused) {
  const auto blob = [](const std::vector<uint32_t>& units, const std::string& pool) {
    std::string bytes;
    const auto put = [&](uint32_t value) {
      for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i));
    };
    put(static_cast<uint32_t>(4 * units.size()));
    for (uint32_t unit : units) put(unit);
    return bytes + pool;
  };
  const auto refusal = [&](const std::string& bytes) {
    return error_of([&] { Charsmap(bytes, "map", "t"); });
  };
  const std::string pool("x\0", 2);
  std::vector<uint32_t> units(256);
  EXPECT_EQ(refusal(blob(units, pool)), "no error");
  EXPECT_EQ(refusal(blob(units, "")), "t: map is malformed: the trie does not fit");
  EXPECT_EQ(refusal(blob(units, "x")), "t: map is malformed: its last replacement does not end");
  EXPECT_EQ(refusal(blob(units, std::string("\xFF\0", 2))),
            "t: map is malformed: a replacement is not UTF-8");
  EXPECT_EQ(refusal(blob({1, 2, 3}, pool)),
            "t: map is malformed: the trie does not consist of whole blocks");
  units[3] = 256u << 10;
  EXPECT_EQ(refusal(blob(units, pool)),
            "t: map is malformed: a branch of the trie leads out of it");
  units[3] = 0;
  units[0] = 1u << 31;
  EXPECT_EQ(refusal(blob(units, pool)),
            "t: map is malformed: a branch of the trie leads out of it");
  units[0] = 0;
  units[3] = 1u << 8 | 5u << 10;
  units[3 ^ 5] = 0x80000002;
  EXPECT_EQ(refusal(blob(units, pool)),
            "t: map is malformed: a leaf of the trie is no replacement");
}

TEST(Base64, DecodesOrRefuses) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("aGk="), "hi");
  EXPECT_EQ(decode_base64("aGkh"), "hi!");
  EXPECT_EQ(decode_base64("+/8A"), std::string("\xFB\xFF\0", 3));
  for (const char* bad : {"a", "aGk", "a=Gk", "aG k", "===="}) {
    EXPECT_EQ(decode_base64(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace snug
