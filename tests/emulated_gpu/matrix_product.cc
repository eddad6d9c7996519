#include "emulated_gpu/matrix_product.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "emulated_gpu/product_values.h"

namespace emulated {
namespace {

constexpr int64_t kSlots = 4;  // tiles whose first halves wait at a time
constexpr size_t kHalvesBytes = size_t{1} << 20;
static_assert(kSlots * kTileSize * sizeof(float) <= kHalvesBytes);

// Multiplications that are not shared among threads, since waiting for each other takes longer.
constexpr double kFewMultiplications = 2e7;

struct Tiles {
  int64_t rows, cols;  // of the result

  int64_t down() const { return (rows + kTileRows - 1) / kTileRows; }
  int64_t count() const { return down() * ((cols + kTileCols - 1) / kTileCols); }
  Tile operator[](int64_t i) const {
    const int64_t row = i % down() * kTileRows, col = i / down() * kTileCols;
    return {row, col, std::min(kTileRows, rows - row), std::min(kTileCols, cols - col)};
  }
};

// 2 z where GELU is x (1 + tanh(z)) / 2, which is x / (1 + exp(-2 z)).
constexpr float kTwice = 2.0f * std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>,
                kCubic = 0.044715f;
float logistic_of(float x) {
  return 1.0f / (1.0f + std::exp(-kTwice * x * (1.0f + kCubic * x * x)));
}

float gelu(float x) { return x * logistic_of(x); }
float gelu_slope(float x) {
  x = std::clamp(x, -16.0f, 16.0f);  // it is 0 or 1 there; further out squares overflow
  const float s = logistic_of(x);
  return s + x * s * (1.0f - s) * kTwice * (1.0f + 3.0f * kCubic * x * x);
}

// What comes behind the sums of a tile.
void finish(const MatrixProduct& p, const Tile& tile, const float* sums) {
  std::array<float, kTileRows> values_memory, others_memory;
  const std::span<float> values(values_memory.data(), size_t(tile.rows)),
      others(others_memory.data(), size_t(tile.rows));
  for (int64_t col = 0; col < tile.cols; ++col) {
    const auto place = [&](const MatrixProduct::Matrix& m) {
      return (tile.col + col) * m.stride + tile.row;
    };
    const float* const column = sums + col * kTileRows;
    for (size_t i = 0; i < values.size(); ++i) values[i] = p.alpha * column[i];
    if (p.beta != 0.0f) {  // else what is there counts for nothing, NaN either
      read_values(p.type, p.c.data, place(p.c), others);
      for (size_t i = 0; i < values.size(); ++i) values[i] += p.beta * others[i];
    }
    if (p.bias) {
      read_values(p.type, p.bias, tile.row, others);
      for (size_t i = 0; i < values.size(); ++i) values[i] += others[i];
    }
    if (p.bending == Bending::kGelu) {
      if (p.argument.data) write_values(p.type, values, p.argument.data, place(p.argument));
      for (float& value : values) value = gelu(value);
    } else if (p.bending == Bending::kGeluGradient) {
      read_values(p.type, p.argument.data, place(p.argument), others);
      for (size_t i = 0; i < values.size(); ++i) values[i] *= gelu_slope(others[i]);
    }
    write_values(p.type, values, p.d.data, place(p.d));
  }
}

void finish(const MatrixProduct& p, const Tile& tile, const int32_t* sums) {
  for (int64_t col = tile.col; col < tile.col + tile.cols; ++col, sums += kTileRows) {
    const auto* const c = static_cast<const int32_t*>(p.c.data) + col * p.c.stride + tile.row;
    auto* const d = static_cast<int32_t*>(p.d.data) + col * p.d.stride + tile.row;
    for (int64_t i = 0; i < tile.rows; ++i) {
      d[i] = (p.alpha != 0.0f ? sums[i] : 0) + (p.beta != 0.0f ? c[i] : 0);
    }
  }
}

template <class Sum>
Sum* own_sums() {
  thread_local std::vector<Sum> sums(kTileSize);
  return sums.data();
}

template <class Sum>
void compute_tile(const MatrixProduct& p, const Tile& tile) {
  Sum* const sums = own_sums<Sum>();
  sum_tile(p.first, p.second, tile, {0, p.depth}, sums);
  finish(p, tile, sums);
}

template <class Sum>
void compute_in_halves(const MatrixProduct& p, const Tile& tile, Sum* first_half) {
  Sum* const sums = own_sums<Sum>();
  sum_tile(p.first, p.second, tile, {0, p.depth / 2}, first_half);
  sum_tile(p.first, p.second, tile, {p.depth / 2, p.depth}, sums);
  for (int64_t col = 0; col < tile.cols; ++col) {
    for (int64_t i = col * kTileRows; i < col * kTileRows + tile.rows; ++i) {
      sums[i] += first_half[i];
    }
  }
  finish(p, tile, sums);
}

// The next of `count`; count: there is none left. A counter that was not cleared gives too few.
uint32_t take_next(uint32_t& counter, uint32_t count) {
  const std::atomic_ref<uint32_t> taken(counter);
  uint32_t next = taken.load();
  while (next < count && !taken.compare_exchange_weak(next, next + 1)) {
  }
  return std::min(next, count);
}

template <class Sum>
void compute_as(const MatrixProduct& p) {
  const Tiles tiles = {p.first.size, p.second.size};
  const int64_t count = tiles.count();
  const bool shared =
      double(tiles.rows) * double(tiles.cols) * double(p.depth) > kFewMultiplications;
  switch (p.order) {
    case SumOrder::kWhole:
#pragma omp parallel for schedule(dynamic) if (shared)
      for (int64_t i = 0; i < count; ++i) compute_tile<Sum>(p, tiles[i]);
      break;
    case SumOrder::kHalves:
#pragma omp parallel for schedule(dynamic) if (shared)
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        Sum* const first_half = static_cast<Sum*>(p.workspace) + slot * kTileSize;
        for (int64_t i = slot; i < count; i += kSlots) {
          compute_in_halves(p, tiles[i], first_half);
        }
      }
      break;
    case SumOrder::kCounted:
      uint32_t& counter = *static_cast<uint32_t*>(p.workspace);
#pragma omp parallel if (shared)
      for (uint32_t i = take_next(counter, uint32_t(count)); i < uint32_t(count);
           i = take_next(counter, uint32_t(count))) {
        compute_tile<Sum>(p, tiles[i]);
      }
      break;
  }
}

}  // namespace

size_t workspace_bytes(SumOrder order) {
  switch (order) {
    case SumOrder::kHalves:
      return kHalvesBytes;
    case SumOrder::kCounted:
      return sizeof(uint32_t);
    default:
      return 0;
  }
}

void compute(const MatrixProduct& product) {
  product.type == CUDA_R_32I ? compute_as<int32_t>(product) : compute_as<float>(product);
}

}  // namespace emulated
