// Sums of products for a tile of a result, the inner loop of the emulated cuBLASLt. Factors are
// converted to fp32 whatever their type; bytes too, since fp32 holds the sums of a block of the
// depth exactly, and blocks are added as integers.
#pragma once

#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace emulated {

// One side of a product behind its op(): `size` vectors of the depth's length, rows of the first
// factor, columns of the second. Elements of a vector or neighbours among vectors lie side by side.
struct Factor {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  int64_t size = 0;
  int64_t stride = 0;        // elements from one vector to the next
  int64_t depth_stride = 0;  // and within one
  bool to_tf32 = false;
};

inline constexpr int64_t kTileRows = 256, kTileCols = 252;  // whole panels of the inner loop
inline constexpr int64_t kTileSize = kTileRows * kTileCols;

struct Tile {
  int64_t row = 0, col = 0;    // of the result
  int64_t rows = 0, cols = 0;  // at most kTileRows, kTileCols
};

struct Depths {
  int64_t begin = 0, end = 0;
};

// sums[col * kTileRows + row] = over the depths. Sum is float or int32_t. All kTileSize may be
// written.
template <class Sum>
void sum_tile(const Factor& first, const Factor& second, const Tile& tile, Depths depths,
              Sum* sums);

}  // namespace emulated
