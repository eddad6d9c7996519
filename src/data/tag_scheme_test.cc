#include "data/tag_scheme.h"

#include <sstream>

#include "data/test_support.h"

namespace snug {
namespace {

// "O B-X I-X" as words of a sentence; "_" has no label.
std::vector<Word> tagged(const std::string& tags) {
  static std::vector<std::unique_ptr<std::string>> storage;
  std::istringstream in(tags);
  std::vector<Word> words;
  for (std::string tag; in >> tag;) {
    storage.push_back(std::make_unique<std::string>(tag == "_" ? "" : tag));
    words.push_back({.label = *storage.back()});
  }
  return words;
}

std::string scheme(const std::vector<std::string>& sentences) {
  TagSchemeFinder finder("x.conll");
  uint64_t line = 1;
  for (const std::string& sentence : sentences) {
    const auto words = tagged(sentence);
    finder.add(words, line);
    line += words.size() + 1;
  }
  return std::string(scheme_name(finder.finish()));
}

TEST(TagScheme, IsFoundFromSentences) {
  EXPECT_EQ(scheme({"O I-LOC I-LOC O", "I-ORG I-PER"}), "IO");
  EXPECT_EQ(scheme({"O I-LOC B-LOC O", "I-ORG I-PER"}), "IOB1");
  EXPECT_EQ(scheme({"O B-LOC I-LOC B-LOC O", "B-ORG B-PER"}), "IOB2");
  EXPECT_EQ(scheme({"B-LOC I-LOC", "O I-LOC"}), "IOB2");  // with a mistake
  EXPECT_EQ(scheme({"B-LOC I-LOC E-LOC S-PER O"}), "BIOES");
  EXPECT_EQ(scheme({"S-PER O"}), "BIOES");
  EXPECT_EQ(scheme({"B-LOC I-LOC L-LOC U-PER O"}), "BILOU");
  EXPECT_EQ(scheme({"B I O"}), "IOB2");
  EXPECT_EQ(scheme({"DT NN -LRB- B"}), "none");
  EXPECT_EQ(scheme({"O O", ""}), "none");
  EXPECT_EQ(scheme({"3 0 1 2"}), "none");
  EXPECT_EQ(scheme({"A B C S U"}), "none");
  EXPECT_EQ(scheme({"S U"}), "none");
  EXPECT_EQ(scheme({"B-LOC _ I-LOC"}), "IOB2");
}

TEST(TagScheme, CountsInsideTagsThatBeginAnEntity) {
  TagSchemeFinder finder("x");
  finder.add(tagged("B-LOC I-PER I-PER O I-LOC _ I-LOC"), 1);
  EXPECT_EQ(finder.stray_inside(), 3u);
}

TEST(TagScheme, RefusesTagsThatNoSchemeHas) {
  EXPECT_EQ(error_of([] { scheme({"O O", "B-LOC X-LOC"}); }),
            "3: x.conll: tag \"X-LOC\" (sentence of line 4, word 2) has no prefix that is known, but \"B-LOC\" (sentence of "
            "line 4, word 1) has; expected O, B- and I- (IOB1, IOB2), with E- and S- (BIOES) or with L- and U- (BILOU), in "
            "front of every type");
  EXPECT_NE(error_of([] { scheme({"LOC", "I-LOC"}); }).find("\"LOC\" (sentence of line 1, word 1)"), std::string::npos);
  EXPECT_NE(error_of([] { scheme({"B-LOC i-LOC"}); }).find("\"i-LOC\""), std::string::npos);
  EXPECT_EQ(error_of([] { scheme({"O B-"}); }),
            "3: x.conll: line 1: word 2 of the sentence has the tag \"B-\", expected a type behind the '-'");
  EXPECT_EQ(error_of([] { scheme({"B-X E-X U-X"}); }),
            "3: x.conll: tag \"E-X\" (sentence of line 1, word 2) is of BIOES, but \"U-X\" (sentence of line 1, word 3) of "
            "BILOU; expected one of the two");
}

TEST(TagScheme, IsFoundFromASetOfLabels) {
  const auto of = [](std::vector<std::string> labels) { return scheme_name(scheme_of(labels)); };
  EXPECT_EQ(of({"O", "B-LOC", "I-LOC"}), "IOB2");
  EXPECT_EQ(of({"O", "I-LOC"}), "IO");
  EXPECT_EQ(of({"B-X", "E-X", "I-X", "O", "S-X"}), "BIOES");
  EXPECT_EQ(of({"B-X", "L-X", "I-X", "O", "U-X"}), "BILOU");
  EXPECT_EQ(of({"NN", "B-X"}), "none");
  EXPECT_EQ(of({"O"}), "none");
  EXPECT_EQ(of({}), "none");
}

TEST(Iob2, IsMadeFromIob1AndLeavesTheRestAlone) {
  const auto converted = [](const std::string& tags) {
    Iob2Labels labels;
    std::string out;
    const auto words = tagged(tags);
    for (const std::string_view label : labels.of(words)) {
      out += (out.empty() ? "" : " ") + (label.empty() ? std::string("_") : std::string(label));
    }
    return out;
  };
  EXPECT_EQ(converted("O I-LOC I-LOC O I-LOC"), "O B-LOC I-LOC O B-LOC");
  EXPECT_EQ(converted("I-LOC B-LOC I-LOC I-PER I-LOC"), "B-LOC B-LOC I-LOC B-PER B-LOC");
  EXPECT_EQ(converted("I-LOC _ I-LOC"), "B-LOC _ B-LOC");
  EXPECT_EQ(converted("I-a-b I-a-b I-a"), "B-a-b I-a-b B-a");
  for (const char* same : {"B-LOC I-LOC B-LOC O B-PER", "B-X I-X E-X S-X O", "B-X I-X L-X U-X", "B I O", "A I O", "3 0 1", "O", ""}) {
    EXPECT_EQ(converted(same), same);
  }
}

}  // namespace
}  // namespace snug
