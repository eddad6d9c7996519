#include "model/quantized_weights.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "ops/quantize.h"

namespace snug {
namespace {

// Stored either way, in one piece or in many, the channels are the same.
TEST(QuantizeMatrix, GivesChannelsInOrder) {
  for (const auto& [channels, inputs] :
       {std::pair<int64_t, int64_t>{1, 1}, {7, 13}, {700, 500}, {3, 300'000}, {300'000, 1}}) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> matrix(size_t(channels * inputs)), turned(matrix.size());
    for (float& v : matrix) v = normal(random);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < inputs; ++i) {
        turned[size_t(i * channels + c)] = matrix[size_t(c * inputs + i)];
      }
    }
    std::vector<int8_t> expected(matrix.size());
    std::vector<float> expected_scales(static_cast<size_t>(channels));
    quantize_rows(matrix.data(), channels, inputs, expected.data(), expected_scales.data());
    for (const bool in_out : {false, true}) {
      SCOPED_TRACE(testing::Message() << channels << " x " << inputs << ", in_out " << in_out);
      const std::vector<float>& stored = in_out ? turned : matrix;
      std::vector<int8_t> values;
      std::vector<float> scales;
      const auto read = [&](uint64_t first, std::span<float> to) {
        ASSERT_LE(first + to.size(), stored.size());
        std::copy_n(stored.begin() + ptrdiff_t(first), to.size(), to.begin());
      };
      quantize_matrix({channels, inputs, in_out, read}, [&](const QuantizedChannels& some) {
        EXPECT_EQ(some.first, int64_t(scales.size()));
        EXPECT_LE(some.values.size(), std::max<size_t>(size_t(inputs), 256 << 10));
        values.insert(values.end(), some.values.begin(), some.values.end());
        scales.insert(scales.end(), some.scales.begin(), some.scales.end());
      });
      EXPECT_EQ(values, expected);
      EXPECT_EQ(scales, expected_scales);
    }
  }
}

}  // namespace
}  // namespace snug
