#include "text/normalizer.h"

#include <gtest/gtest.h>
#include <xxhash.h>

namespace snug {
namespace {

// The flags of all 1,114,112 code points as checked one by one against the reference library. A
// failure here means that this ICU disagrees: find the code points and add them to the exceptions
// in unicode.cc.
TEST(CharTable, IsTheReferencesWhateverTheVersionOfIcu) {
  const CharTable& table = CharTable::get();
  std::vector<uint8_t> bert(0x110000), gpt2(0x110000), marks(0x110000);
  for (char32_t c = 0; c < bert.size(); ++c) {
    bert[c] = static_cast<uint8_t>(table[c] & 0xFF);
    gpt2[c] = static_cast<uint8_t>((table[c] & (kCharLetter | kCharNumber)) >> 8);
    marks[c] = (table[c] & kCharAnyMark) != 0;
  }
  EXPECT_EQ(XXH3_64bits(bert.data(), bert.size()), 0x29792cc53fb15a7c);
  EXPECT_EQ(XXH3_64bits(gpt2.data(), gpt2.size()), 0x70c220053b82a6ae);
  EXPECT_EQ(XXH3_64bits(marks.data(), marks.size()), 0x898c70c9717700e2);
}

TEST(CharTable, Examples) {
  const CharTable& table = CharTable::get();
  EXPECT_EQ(table['a'], kCharLetter);
  EXPECT_EQ(table['A'], kCharUpper | kCharLetter);
  EXPECT_EQ(table['$'], kCharPunct);  // a symbol in Unicode, punctuation for BERT
  EXPECT_EQ(table['\n'], kCharSpace);
  EXPECT_EQ(table[0x0B], kCharSpace | kCharDropped);
  EXPECT_EQ(table[0x4E2D], kCharCjk | kCharLetter);
  EXPECT_EQ(table[0xAC00], kCharDecomposes | kCharLetter);
  EXPECT_EQ(table[0x2B820], kCharLetter);  // an ideograph that BERT's reference forgot
  EXPECT_EQ(table[0x00BD], kCharNumber);
  EXPECT_EQ(table[0x105C0], kCharLetter);     // since Unicode 16
  EXPECT_EQ(table[0xA7D2] & kCharLetter, 0);  // since Unicode 17
  EXPECT_EQ(table[0x2E52], 0);                // punctuation since Unicode 13
  EXPECT_EQ(table[0x10FFFF], 0);              // a noncharacter
  EXPECT_EQ(table[0x10FFFD], kCharDropped);
}

struct Row {
  std::string text, uncased, cased;
};

TEST(Normalizer, Steps) {
  const Row rows[] = {
      {"", "", ""},
      {"Hello World", "hello world", "Hello World"},
      {"a\tb\nc\r", "a b c ", "a b c "},
      {std::string("a\0b", 3), "ab", "ab"},
      {"a\x0B\x1C\x7F"
       "b",
       "ab", "ab"},
      {"\uFFFDx\u200Dy\u00AD", "xy", "xy"},
      {"\u00A0\u2028\u3000", "   ", "   "},
      {"Caf\u00E9", "cafe", "Caf\u00E9"},
      {"e\u0301\u0323", "e", "e\u0301\u0323"},
      {"\u0130", "i", "\u0130"},
      {"\u03A3\u03C2", "\u03C3\u03C2",
       "\u03A3\u03C2"},  // no final sigma: lower case looks at one character
      {"\u4E2Da", " \u4E2D a", " \u4E2D a"},
      {"\uAC01", "\u1100\u1161\u11A8", "\uAC01"},
      {"\xC3(", "(", "("},
      {"\xED\xA0\x80", "", ""},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(Normalizer({}).normalize(row.text), row.uncased) << row.text;
    EXPECT_EQ(Normalizer({.lowercase = false}).normalize(row.text), row.cased) << row.text;
  }
}

TEST(Normalizer, FlagsAreIndependent) {
  const std::string text = "\u00C9\u4E2D\t";
  const auto with = [&](NormalizerOptions options) { return Normalizer(options).normalize(text); };
  EXPECT_EQ(with({.strip_accents = false}), "\u00E9 \u4E2D  ");
  EXPECT_EQ(with({.strip_accents = true, .lowercase = false}), "E \u4E2D  ");
  EXPECT_EQ(with({.handle_chinese_chars = false}), "e\u4E2D ");
  EXPECT_EQ(with({.clean_text = false}), "e \u4E2D \t");
  EXPECT_EQ(with({false, false, false, false}), text);
}

TEST(Normalizer, EveryByteKnowsItsCodePoint) {
  NormalizedText out;
  out.with_origin = true;
  uint32_t code_point = 10;
  Normalizer({}).append("\u00C9\u200D\u4E2Db\xFF\uAC00", code_point, out);
  EXPECT_EQ(out.bytes, "e \u4E2D b\u1100\u1161");
  EXPECT_EQ(out.origin,
            (std::vector<uint32_t>{10, 12, 12, 12, 12, 12, 13, 15, 15, 15, 15, 15, 15}));
  EXPECT_EQ(code_point, 16u);
}

// Marks are sorted by combining class, but the origins stay in the order of the text, as in the
// reference.
TEST(Normalizer, ReorderedMarksKeepPositions) {
  NormalizedText out;
  out.with_origin = true;
  uint32_t code_point = 0;
  // U+1D16D (class 226) and U+1D165 (class 216) are spacing marks, so they survive accent
  // stripping.
  Normalizer({}).append("a\U0001D16D\U0001D165", code_point, out);
  EXPECT_EQ(out.bytes, "a\U0001D165\U0001D16D");
  EXPECT_EQ(out.origin, (std::vector<uint32_t>{0, 1, 1, 1, 1, 2, 2, 2, 2}));
}

TEST(Normalizer, CutsChangeNothing) {
  const std::string text =
      "Caf\u00E9 e\u0301, a\u4E2D\u6587b\u0323\u0301\u0302! \x80\xE4\xB8 x\xE4\xB8\xAD\u3000end";
  const Normalizer normalizer({});
  for (size_t from = 1; from < text.size(); ++from) {
    const size_t cut = normalizer.find_cut(text, from);
    ASSERT_LE(from, cut);
    EXPECT_EQ(normalizer.normalize(text.substr(0, cut)) + normalizer.normalize(text.substr(cut)),
              normalizer.normalize(text));
  }
}

TEST(Unicode, IllFormedPartsCountOnce) {
  EXPECT_EQ(count_code_points("\xE2\x82\x41"), 2u);  // a cut-off sequence is one, as in Python
  EXPECT_EQ(count_code_points("\xFF\xFE"), 2u);
  EXPECT_EQ(count_code_points("\xED\xA0\x80"), 3u);  // a surrogate is three
  EXPECT_EQ(find_invalid_utf8("ab\xFF"), 2u);
  EXPECT_EQ(find_invalid_utf8("ab\u00E9"), std::string_view::npos);
}

}  // namespace
}  // namespace snug
