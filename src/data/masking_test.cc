#include "data/masking.h"

#include <cmath>
#include <map>
#include <set>

#include "data/test_support.h"

namespace snug {
namespace {

// Ids 0..4 are special; of the others the odd ones continue the word before.
class MaskingTokenizer final : public Tokenizer {
 public:
  MaskingTokenizer() {
    ids_.pad = 0, ids_.unk = 1, ids_.cls = 2, ids_.sep = 3, ids_.mask = 4;
    for (int i = 0; i < 100; ++i) {
      tokens_.push_back((i > 4 && i % 2 ? "##" : "") + std::to_string(i));
    }
  }
  void encode(std::string_view, std::optional<std::string_view>, const EncodeOptions&,
              Encoding&) const override {}
  std::vector<Encoding> encode_windows(std::string_view, std::optional<std::string_view>, size_t,
                                       const EncodeOptions&) const override {
    return {};
  }
  int32_t vocab_size() const override { return 100; }
  const SpecialIds& special_ids() const override { return ids_; }
  std::string_view token(int32_t id) const override { return tokens_[size_t(id)]; }
  int32_t find(std::string_view) const override { return -1; }
  size_t model_max_length() const override { return 0; }
  uint64_t fingerprint() const override { return 0; }
  void save(const std::filesystem::path&) const override {}

  SpecialIds ids_;
  std::vector<std::string> tokens_;
};

struct Masked {
  std::vector<int32_t> ids, places, originals;
};

Masked mask(Masker& masker, uint64_t sample, std::vector<int32_t> ids) {
  Masked out{std::move(ids), std::vector<int32_t>(1000), std::vector<int32_t>(1000)};
  const size_t count = masker.apply(sample, out.ids, out.places.data(), out.originals.data());
  out.places.resize(count);
  out.originals.resize(count);
  return out;
}

std::vector<int32_t> text(int length) {
  std::vector<int32_t> ids = {2};
  for (int i = 0; i < length; ++i) ids.push_back(6 + 2 * (i % 40));
  ids.push_back(3);
  return ids;
}

TEST(Masking, ChoosesTheShareAndReplacesAsStated) {
  const MaskingTokenizer tokenizer;
  Masker masker(std::make_shared<MaskTable>(tokenizer, 0.15, false), 7, 200);
  std::map<int32_t, int> chosen;
  int masked = 0, kept = 0, other = 0, all = 0;
  for (uint64_t sample = 0; sample < 2000; ++sample) {
    const auto ids = text(100);
    const Masked out = mask(masker, sample, ids);
    ASSERT_EQ(out.places.size(), 15u);
    ASSERT_TRUE(std::is_sorted(out.places.begin(), out.places.end()));
    std::set<int32_t> places(out.places.begin(), out.places.end());
    ASSERT_EQ(places.size(), 15u);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!places.count(int32_t(i))) {
        ASSERT_EQ(out.ids[i], ids[i]);
      }
    }
    for (size_t i = 0; i < out.places.size(); ++i) {
      const auto at = size_t(out.places[i]);
      ASSERT_EQ(out.originals[i], ids[at]);
      ASSERT_TRUE(at > 0 && at < ids.size() - 1) << "special tokens stay";
      ++chosen[out.places[i]], ++all;
      if (out.ids[at] == 4) {
        ++masked;
      } else if (out.ids[at] == ids[at]) {
        ++kept;
      } else {
        ++other;
      }
    }
  }
  EXPECT_NEAR(double(masked) / all, 0.8, 0.015);
  EXPECT_NEAR(double(kept) / all, 0.1, 0.01);
  EXPECT_NEAR(double(other) / all, 0.1, 0.01);
  EXPECT_EQ(chosen.size(), 100u);
  for (const auto& [place, count] : chosen) EXPECT_NEAR(count, 300, 100) << place;
}

TEST(Masking, DependsOnSeedAndSampleAlone) {
  const MaskingTokenizer tokenizer;
  const auto table = std::make_shared<MaskTable>(tokenizer, 0.15, false);
  Masker one(table, 7, 200), same(table, 7, 200), other(table, 8, 200);
  EXPECT_EQ(mask(one, 3, text(50)).ids, mask(same, 3, text(50)).ids);
  EXPECT_NE(mask(one, 3, text(50)).ids, mask(one, 4, text(50)).ids);
  EXPECT_NE(mask(one, 3, text(50)).ids, mask(other, 3, text(50)).ids);
}

TEST(Masking, WholeWords) {
  const MaskingTokenizer tokenizer;
  Masker masker(std::make_shared<MaskTable>(tokenizer, 0.3, true), 7, 200);
  const std::vector<int32_t> ids = {2, 10, 11, 13, 20, 30, 31, 40, 50, 51, 53, 55, 3};
  const std::vector<std::vector<int32_t>> words = {{1, 2, 3}, {4}, {5, 6}, {7}, {8, 9, 10, 11}};
  for (uint64_t sample = 0; sample < 200; ++sample) {
    const Masked out = mask(masker, sample, ids);
    EXPECT_LE(out.places.size(), 3u);
    const std::set<int32_t> places(out.places.begin(), out.places.end());
    for (const auto& word : words) {
      size_t count = 0;
      for (const int32_t place : word) count += places.count(place);
      EXPECT_TRUE(count == 0 || count == word.size());
    }
  }
}

TEST(Masking, ShortAndEmptyTexts) {
  const MaskingTokenizer tokenizer;
  Masker masker(std::make_shared<MaskTable>(tokenizer, 0.15, false), 7, 200);
  EXPECT_EQ(mask(masker, 1, {2, 3}).places.size(), 0u);
  EXPECT_EQ(mask(masker, 1, {2, 8, 3}).places, std::vector<int32_t>{1});
  EXPECT_EQ(mask(masker, 1, {}).places.size(), 0u);
}

TEST(Masking, NeedsAMaskToken) {
  EXPECT_NE(error_of([] { MaskTable(FakeTokenizer(), 0.15, false); }).find("no mask token"),
            std::string::npos);
}

}  // namespace
}  // namespace snug
