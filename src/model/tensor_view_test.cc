#include "model/tensor_view.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace snug {
namespace {

namespace fs = std::filesystem;

class TensorViewTest : public ::testing::Test {
 protected:
  TensorViewTest() {
    std::string name = fs::temp_directory_path() / "snug-view-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    std::vector<float> values(kStored);
    std::iota(values.begin(), values.end(), 0.0f);
    std::ofstream(folder_ / "x", std::ios::binary)
        << "abc"
        << std::string_view(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(float));
  }
  ~TensorViewTest() override { fs::remove_all(folder_); }

  // Every range of the view, element by element against the strides' definition.
  void expect_right(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                    uint64_t first) const {
    const InputFile file(folder_ / "x");
    const TensorView view{3 + first * sizeof(float), sizeof(float), shape, strides};
    std::vector<float> expected;
    for (uint64_t i = 0; i < view.elements(); ++i) {
      uint64_t place = first, rest = i;
      for (size_t d = shape.size(); d-- > 0; rest /= uint64_t(shape[d])) {
        place += rest % uint64_t(shape[d]) * uint64_t(strides[d]);
      }
      expected.push_back(float(place));
    }
    const size_t step = view.elements() < 200 ? 1 : 997;
    for (size_t begin = 0; begin < expected.size(); begin += step) {
      for (size_t count = 1; begin + count <= expected.size(); count += step) {
        std::vector<float> found(count);
        read_view(file, view, begin, std::as_writable_bytes(std::span(found)));
        ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + ptrdiff_t(begin)))
            << begin << " " << count;
      }
    }
  }

  static constexpr size_t kStored = 20'000;
  fs::path folder_;
};

TEST_F(TensorViewTest, ReadsAnyOrder) {
  expect_right({}, {}, 5);
  expect_right({1, 1}, {7, 7}, 5);
  expect_right({12}, {1}, 0);
  expect_right({12}, {3}, 2);
  expect_right({3, 4}, {4, 1}, 1);
  expect_right({3, 4}, {1, 3}, 0);         // transposed
  expect_right({3, 4}, {9, 2}, 4);         // every second column of some
  expect_right({4, 2, 3}, {1, 12, 4}, 0);  // permuted
  expect_right({2, 3, 2, 2}, {1, 2, 12, 6}, 3);
  expect_right({5, 3}, {6, 0}, 1);  // one column three times
  expect_right({90, 100}, {1, 90}, 0);
  expect_right({3, 2}, {1, 9000}, 0);  // further apart than the buffer reaches
  expect_right({2, 4}, {6000, 4500}, 7);
  expect_right({100, 60}, {200, 3}, 11);
}

TEST_F(TensorViewTest, KnowsWhatIsContiguous) {
  const auto contiguous = [](std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return TensorView{0, 4, std::move(shape), std::move(strides)}.is_contiguous();
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({2, 3}, {3, 1}));
  EXPECT_TRUE(contiguous({2, 1, 3}, {3, 99, 1}));
  EXPECT_FALSE(contiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(contiguous({2, 3}, {4, 1}));
}

TEST(ViewMismatch, FindsWhatReachesOutside) {
  using Sizes = std::vector<int64_t>;
  const auto fits = [](const Sizes& shape, const Sizes& strides, uint64_t first) {
    return view_mismatch(shape, strides, first, 12).empty();
  };
  EXPECT_TRUE(fits({3, 4}, {4, 1}, 0));
  EXPECT_FALSE(fits({3, 4}, {4, 1}, 1));
  EXPECT_TRUE(fits({2, 2}, {8, 3}, 0));
  EXPECT_FALSE(fits({2, 2}, {8, 4}, 0));
  EXPECT_TRUE(fits({}, {}, 11));
  EXPECT_FALSE(fits({}, {}, 12));
  EXPECT_TRUE(fits({0, 5}, {5, 1}, 12));
  EXPECT_FALSE(fits({0, 5}, {5, 1}, 13));
  EXPECT_TRUE(fits({0, INT64_MAX, INT64_MAX}, {1, 1, 1}, 0));
  EXPECT_TRUE(fits({3, 4}, {4, 0}, 0));
  EXPECT_FALSE(fits({13}, {0}, 0));
  EXPECT_FALSE(fits({-1}, {1}, 0));
  EXPECT_FALSE(fits({2}, {-1}, 3));
  EXPECT_FALSE(fits({2, 2}, {INT64_MAX, INT64_MAX}, 0));
  EXPECT_FALSE(fits({INT64_MAX, INT64_MAX}, {0, 0}, 0));
  EXPECT_FALSE(fits({2}, {1, 1}, 0));
}

}  // namespace
}  // namespace snug
