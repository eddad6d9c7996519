#include "cuda/product_choices.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace snug::cuda {
namespace {

const ProductShape kShape{.dtype = DType::kBF16,
                          .rows = 96,
                          .in = 64,
                          .out = 128,
                          .bias = true,
                          .gelu = ProductGelu::kKeeps};

ProductAlgorithm algorithm_like(uint64_t word) {
  ProductAlgorithm algorithm{.counter_bytes = size_t(word) * 256};
  for (uint64_t& each : algorithm.algorithm.data) each = ++word;
  return algorithm;
}

bool same(const ProductAlgorithm* a, const ProductAlgorithm& b) {
  return a && a->counter_bytes == b.counter_bytes &&
         std::ranges::equal(a->algorithm.data, b.algorithm.data);
}

class ProductChoicesTest : public testing::Test {
 protected:
  ProductChoicesTest() { std::filesystem::remove(file_); }
  ~ProductChoicesTest() override { std::filesystem::remove(file_); }

  const std::filesystem::path file_ =
      testing::TempDir() + "snug-product-choices-" + std::to_string(::getpid());
};

TEST_F(ProductChoicesTest, OtherRunsReadWhatOneHasWritten) {
  ProductChoices first(file_);
  EXPECT_EQ(first.algorithm(kShape), nullptr);
  first.keep(kShape, algorithm_like(7));
  first.keep({kShape, true}, ProductWay::kOwn);
  const ProductChoices second(file_);
  EXPECT_TRUE(same(second.algorithm(kShape), algorithm_like(7)));
  ASSERT_NE(second.way({kShape, true}), nullptr);
  EXPECT_EQ(*second.way({kShape, true}), ProductWay::kOwn);
  ProductShape other = kShape;
  other.rounds = true;
  EXPECT_EQ(second.algorithm(other), nullptr);
}

// A run whose workspace has no room for our kernel does not choose for those that have it.
TEST_F(ProductChoicesTest, WaysWithAndWithoutAKernelOfOursAreApart) {
  ProductChoices choices(file_);
  choices.keep({kShape, true}, ProductWay::kOwn);
  EXPECT_EQ(choices.way({kShape, false}), nullptr);
  EXPECT_EQ(choices.keep({kShape, false}, ProductWay::kApart), ProductWay::kApart);
  const ProductChoices second(file_);
  EXPECT_EQ(*second.way({kShape, true}), ProductWay::kOwn);
  EXPECT_EQ(*second.way({kShape, false}), ProductWay::kApart);
}

TEST_F(ProductChoicesTest, TheFirstLineCounts) {
  ProductChoices first(file_), second(file_);
  first.keep(kShape, algorithm_like(1));
  first.keep({kShape, false}, ProductWay::kLibrary);
  EXPECT_TRUE(same(&second.keep(kShape, algorithm_like(2)), algorithm_like(1)));
  EXPECT_EQ(second.keep({kShape, false}, ProductWay::kApart), ProductWay::kLibrary);
  const ProductChoices third(file_);
  EXPECT_TRUE(same(third.algorithm(kShape), algorithm_like(1)));
  EXPECT_EQ(*third.way({kShape, false}), ProductWay::kLibrary);
}

TEST_F(ProductChoicesTest, WithoutAFileTheyStayInMemory) {
  ProductChoices choices(std::nullopt);
  EXPECT_FALSE(choices.turn([] { return false; }).held());
  choices.keep(kShape, algorithm_like(3));
  EXPECT_TRUE(same(choices.algorithm(kShape), algorithm_like(3)));
}

// Every line with a byte less, or with another in its place, is a choice or none: never an error.
TEST_F(ProductChoicesTest, DamagedLinesAreNoErrors) {
  {
    ProductChoices choices(file_);
    choices.keep(kShape, algorithm_like(1));
    choices.keep({kShape, true}, ProductWay::kOwn);
  }
  std::vector<std::string> lines(2);
  {
    std::ifstream in(file_);
    for (std::string& line : lines) ASSERT_TRUE(std::getline(in, line));
  }
  for (const std::string& line : lines) {
    std::ofstream out(file_);
    for (size_t i = 0; i < line.size(); ++i) {
      out << line.substr(0, i) << line.substr(i + 1) << "\n";
      for (const char c : {'9', '-', '"', '[', 'n'}) {
        std::string damaged = line;
        damaged[i] = c;
        out << damaged << "\n";
      }
    }
    out.close();
    const ProductChoices choices(file_);
    for (const bool own : {false, true}) {
      if (const ProductWay* const way = choices.way({kShape, own})) {
        EXPECT_LE(int(*way), int(ProductWay::kOwn));
      }
    }
  }
}

}  // namespace
}  // namespace snug::cuda
