#include "emulated_gpu/product_tile.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "emulated_gpu/product_values.h"

namespace emulated {
namespace {

// Sums that the inner loop keeps in registers: 12 of AVX2's 16.
constexpr int kLanes = 8, kVectors = 2;
constexpr int kPanelRows = kLanes * kVectors, kPanelCols = 6;
constexpr int64_t kDepthBlock = 256;
static_assert(kTileRows % kPanelRows == 0 && kTileCols % kPanelCols == 0);
static_assert(kDepthBlock * 128 * 128 <= int64_t{1} << 24, "fp32 holds sums of bytes exactly");

// Vectors from `begin` on as panels [depth][kWidth], the last one filled up with zeros.
template <int kWidth>
void pack(const Factor& factor, int64_t begin, int64_t count, Depths depths, float* to) {
  static_assert(kTileRows >= kTileCols && kTileRows >= kDepthBlock);
  std::array<float, kTileRows> line;
  const int64_t panels = (count + kWidth - 1) / kWidth, depth = depths.end - depths.begin;
  const auto read = [&](int64_t at, int64_t length) {
    const std::span<float> values(line.data(), size_t(length));
    read_values(factor.type, factor.data, at, values);
    if (factor.to_tf32) round_to_tf32(values);
  };
  if (factor.stride == 1) {
    std::fill(line.begin() + count, line.begin() + panels * kWidth, 0.0f);
    for (int64_t k = 0; k < depth; ++k) {
      read(begin + (depths.begin + k) * factor.depth_stride, count);
      for (int64_t p = 0; p < panels; ++p) {
        std::memcpy(to + (p * depth + k) * kWidth, line.data() + p * kWidth,
                    kWidth * sizeof(float));
      }
    }
    return;
  }
  for (int64_t i = 0; i < panels * kWidth; ++i) {
    if (i < count) {
      read((begin + i) * factor.stride + depths.begin, depth);
    } else {
      line.fill(0.0f);
    }
    float* const column = to + i / kWidth * depth * kWidth + i % kWidth;
    for (int64_t k = 0; k < depth; ++k) column[k * kWidth] = line[size_t(k)];
  }
}

void add(float* sums, __m256 block) {
  _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), block));
}
void add(int32_t* sums, __m256 block) {
  auto* const at = reinterpret_cast<__m256i*>(sums);
  _mm256_storeu_si256(at, _mm256_add_epi32(_mm256_loadu_si256(at), _mm256_cvtps_epi32(block)));
}

// sums += a panel of the first factor by one of the second.
template <class Sum>
void multiply_panels(const float* first, const float* second, int64_t depth, Sum* sums) {
  __m256 block[kPanelCols][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k, first += kPanelRows, second += kPanelCols) {
    __m256 rows[kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) rows[i] = _mm256_loadu_ps(first + i * kLanes);
#pragma GCC unroll 6
    for (int col = 0; col < kPanelCols; ++col) {
      const __m256 factor = _mm256_broadcast_ss(second + col);
#pragma GCC unroll 2
      for (int i = 0; i < kVectors; ++i) {
        block[col][i] = _mm256_fmadd_ps(rows[i], factor, block[col][i]);
      }
    }
  }
#pragma GCC unroll 6
  for (int col = 0; col < kPanelCols; ++col) {
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) add(sums + col * kTileRows + i * kLanes, block[col][i]);
  }
}

}  // namespace

template <class Sum>
void sum_tile(const Factor& first, const Factor& second, const Tile& tile, Depths depths,
              Sum* sums) {
  thread_local std::vector<float> packed_first(kTileRows * kDepthBlock),
      packed_second(kTileCols * kDepthBlock);
  for (int64_t col = 0; col < tile.cols; ++col) {
    std::fill_n(sums + col * kTileRows, tile.rows, Sum{0});
  }
  for (int64_t begin = depths.begin; begin < depths.end; begin += kDepthBlock) {
    const Depths block = {begin, std::min(begin + kDepthBlock, depths.end)};
    const int64_t depth = block.end - block.begin;
    pack<kPanelRows>(first, tile.row, tile.rows, block, packed_first.data());
    pack<kPanelCols>(second, tile.col, tile.cols, block, packed_second.data());
    for (int64_t col = 0; col < tile.cols; col += kPanelCols) {
      for (int64_t row = 0; row < tile.rows; row += kPanelRows) {
        multiply_panels(packed_first.data() + row * depth, packed_second.data() + col * depth,
                        depth, sums + col * kTileRows + row);
      }
    }
  }
}

template void sum_tile(const Factor&, const Factor&, const Tile&, Depths, float*);
template void sum_tile(const Factor&, const Factor&, const Tile&, Depths, int32_t*);

}  // namespace emulated
