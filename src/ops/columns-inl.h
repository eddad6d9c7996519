// Sums over rows (tokens) into one value per column: the shape of every parameter gradient of
// biases and norms. A piece of columns is summed by one thread in a fixed order, so the result does
// not depend on the number of threads. Included once per target.
#if defined(SNUG_OPS_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_COLUMNS_INL_H_
#undef SNUG_OPS_COLUMNS_INL_H_
#else
#define SNUG_OPS_COLUMNS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// Adds into first[c] and second[c] (each optional) the sums over rows of two terms, for columns
// [begin, end). term(row, column, access, a, b) sets the two vectors. Rows are summed in blocks of
// 32 and the blocks then added, which keeps the rounding error of long sums near that of short
// ones.
template <class Term>
HWY_INLINE void add_column_sums(int64_t rows, size_t begin, size_t end, float* first, float* second,
                                const Term& term) {
  // Long enough to read rows in streams, short enough for the first-level cache.
  constexpr size_t kStrip = 1024;
  constexpr int64_t kBlock = 32;
  const FloatTag d;
  HWY_ALIGN float block[2][kStrip + 16], total[2][kStrip];  // the last vector may be a part
  for (size_t strip = begin; strip < end; strip += kStrip) {
    const size_t width = std::min(kStrip, end - strip);
    for (float* sums : {total[0], total[1]}) std::fill(sums, sums + width, 0.0f);
    for (int64_t row0 = 0; row0 < rows; row0 += kBlock) {
      for (float* sums : {block[0], block[1]}) std::fill(sums, sums + width + 16, 0.0f);
      for (int64_t row = row0; row < std::min(rows, row0 + kBlock); ++row) {
        over_row(width, [&](size_t i, auto access) HWY_ATTR {
          FloatVector a = hn::Zero(d), b = hn::Zero(d);
          term(row, strip + i, access, a, b);
          hn::StoreU(hn::Add(hn::LoadU(d, block[0] + i), a), d, block[0] + i);
          if (second) hn::StoreU(hn::Add(hn::LoadU(d, block[1] + i), b), d, block[1] + i);
        });
      }
      for (size_t i = 0; i < width; ++i) {
        total[0][i] += block[0][i];
        total[1][i] += block[1][i];
      }
    }
    for (size_t i = 0; i < width; ++i) {
      if (first) first[strip + i] += total[0][i];
      if (second) second[strip + i] += total[1][i];
    }
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
