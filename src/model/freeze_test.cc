#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "model/config_test_util.h"
#include "model/model.h"

namespace snug {
namespace {

// Names of what is still trained.
std::vector<std::string> trained(Family family, Head head,
                                 const std::vector<std::string>& entries) {
  const auto model =
      make_model(test_config(family, {.layers = 4}), head, {.freeze = entries, .lora = {}});
  std::vector<std::string> names;
  for (const Parameter& p : model->parameters()) {
    if (p.trained) names.push_back(p.name);
  }
  return names;
}

size_t count(Family family, Head head, const std::vector<std::string>& entries) {
  return trained(family, head, entries).size();
}

// qkv, attention out, norm, in, out, norm: a weight and a bias each.
constexpr size_t kPerLayer = 12;
constexpr size_t kBert = 5 + 4 * kPerLayer + 4;

TEST(Freeze, NamesRangesAndPatterns) {
  const auto bert = [](const std::vector<std::string>& entries) {
    return count(Family::kBert, Head::kClassifier, entries);
  };
  EXPECT_EQ(bert({}), kBert);
  EXPECT_EQ(bert({"embeddings"}), kBert - 5);
  EXPECT_EQ(bert({"layers.1"}), kBert - kPerLayer);
  EXPECT_EQ(bert({"encoder.0-2", "embeddings"}), kBert - 3 * kPerLayer - 5);
  EXPECT_EQ(bert({"all-but-head"}), 4u);
  EXPECT_EQ(bert({"*.LayerNorm"}), kBert - 2 - 4 * 4);
  EXPECT_EQ(bert({"embeddings.word_embeddings.weight"}), kBert - 1);
  EXPECT_EQ(bert({"bert.encoder.layer.3"}), kBert - kPerLayer);
  EXPECT_EQ(bert({"pooler"}), kBert - 2);
  EXPECT_EQ(trained(Family::kBert, Head::kClassifier, {"all-but-head", "pooler"}),
            (std::vector<std::string>{"classifier.weight", "classifier.bias"}));
  EXPECT_EQ(count(Family::kGpt2, Head::kCausalLm, {"embeddings", "h.0-3"}), 2u);  // the last norm
}

TEST(Freeze, RefusesWhatIsNotThere) {
  const auto refused = [](Family family, Head head, const std::vector<std::string>& entries) {
    try {
      count(family, head, entries);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kUsage;
    }
    return false;
  };
  EXPECT_TRUE(refused(Family::kBert, Head::kClassifier, {"layers.4"}));
  EXPECT_TRUE(refused(Family::kBert, Head::kClassifier, {"layers.2-9"}));
  EXPECT_TRUE(refused(Family::kBert, Head::kClassifier, {"embedding"}));
  EXPECT_TRUE(refused(Family::kBert, Head::kClassifier, {"all-but-head", "classifier", "pooler"}));
  // Its head is the word table.
  EXPECT_TRUE(refused(Family::kGpt2, Head::kCausalLm, {"all-but-head"}));
}

TEST(Freeze, LeavesSomeOfTheAdapters) {
  const auto trained_adapters = [](const std::vector<std::string>& entries) {
    const auto model = make_model(test_config(Family::kBert, {.layers = 4}), Head::kClassifier,
                                  {.freeze = entries, .lora = {.rank = 2, .targets = {"query"}}});
    return std::ranges::count_if(model->parameters(),
                                 [](const Parameter& p) { return p.is_adapter && p.trained; });
  };
  EXPECT_EQ(trained_adapters({"embeddings"}), 8);
  EXPECT_EQ(trained_adapters({"layers.0-2"}), 2);
  for (const char* all : {"all-but-head", "layers.0-3", "*.query"}) {
    try {
      trained_adapters({all});
      ADD_FAILURE() << all;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find("none of the adapters"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace snug
