// Small matrix products on tiles in the caches, one thread, no packing and no calls: what attention
// needs, where a BLAS call's overhead and buffers are out of proportion. Blocks of C are held in
// registers, about twelve vectors of them: enough independent sums to hide the latency of fused
// multiply-adds, few enough for sixteen registers. Included once per target.
#if defined(SNUG_OPS_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_TILE_PRODUCT_INL_H_
#undef SNUG_OPS_TILE_PRODUCT_INL_H_
#else
#define SNUG_OPS_TILE_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// c[rows, cols] = or += a[rows, inner] · b[inner, cols]. Columns are worked on in whole vectors: b
// is read and c written up to cols rounded up to the vector. Element (i, p) of a is a[i * a_row + p
// * a_inner], so a may be transposed.
struct TileProduct {
  const float* a;
  size_t a_row, a_inner;
  const float* b;
  size_t b_row;
  float* c;
  size_t c_row;
  size_t rows, inner, cols;
  bool add;
};

// kRows x kVectors of c, at c; a and b point at their first row and column.
template <size_t kRows, size_t kVectors>
HWY_INLINE void tile_block(const TileProduct& t, const float* HWY_RESTRICT a,
                           const float* HWY_RESTRICT b, float* HWY_RESTRICT c, size_t inner,
                           bool add) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVector sum[kRows][kVectors];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j) {
      sum[i][j] = add ? hn::LoadU(d, c + i * t.c_row + j * lanes) : hn::Zero(d);
    }
  }
  for (size_t p = 0; p < inner; ++p) {
    FloatVector row[kVectors];
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j) row[j] = hn::LoadU(d, b + p * t.b_row + j * lanes);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
      const FloatVector element = hn::Set(d, a[i * t.a_row + p * t.a_inner]);
#pragma GCC unroll 8
      for (size_t j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(element, row[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j) hn::StoreU(sum[i][j], d, c + i * t.c_row + j * lanes);
  }
}

// The last rows of a panel, fewer than kRows + 1.
template <size_t kRows, size_t kVectors>
HWY_INLINE void tile_rest(const TileProduct& t, size_t rows, const float* a, const float* b,
                          float* c, size_t inner, bool add) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return tile_block<kRows, kVectors>(t, a, b, c, inner, add);
    tile_rest<kRows - 1, kVectors>(t, rows, a, b, c, inner, add);
  }
}

// All rows of kVectors columns of vectors, for inner indices [first, first + inner).
template <size_t kRows, size_t kVectors>
HWY_NOINLINE void tile_panel(const TileProduct& t, size_t column, size_t first, size_t inner,
                             bool add) {
  const float* const b = t.b + first * t.b_row + column;
  const float* const a = t.a + first * t.a_inner;
  size_t i = 0;
  for (; i + kRows <= t.rows; i += kRows) {
    tile_block<kRows, kVectors>(t, a + i * t.a_row, b, t.c + i * t.c_row + column, inner, add);
  }
  tile_rest<kRows - 1, kVectors>(t, t.rows - i, a + i * t.a_row, b, t.c + i * t.c_row + column,
                                 inner, add);
}

HWY_INLINE void tile_product(const TileProduct& t) {
  // Rows of b per pass: a panel of them stays in the first-level cache.
  constexpr size_t kInner = 256;
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  for (size_t first = 0; first < t.inner; first += kInner) {
    const size_t inner = std::min(kInner, t.inner - first);
    const bool add = t.add || first > 0;
    size_t column = 0;
    for (size_t left = (t.cols + lanes - 1) / lanes; left > 0;) {
      if (left == 4 || left >= 7) {
        tile_panel<3, 4>(t, column, first, inner, add);
        left -= 4, column += 4 * lanes;
      } else if (left >= 3) {
        tile_panel<4, 3>(t, column, first, inner, add);
        left -= 3, column += 3 * lanes;
      } else if (left == 2) {
        tile_panel<6, 2>(t, column, first, inner, add);
        left -= 2, column += 2 * lanes;
      } else {
        tile_panel<6, 1>(t, column, first, inner, add);
        left -= 1, column += lanes;
      }
    }
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
