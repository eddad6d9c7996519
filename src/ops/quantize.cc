#include "ops/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantize.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/quantize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

void QuantizeRows(const float* x, int64_t rows, size_t cols, int8_t* q, float* scales) {
  const hn::Rebind<int8_t, IntTag> d8;
  for (int64_t row = 0; row < rows; ++row) {
    int8_t* const to = q + size_t(row) * cols;
    scales[row] =
        quantize_row(x + size_t(row) * cols, cols, [&](size_t i, auto, IntVector v) HWY_ATTR {
          int8_t lanes[16];
          hn::StoreU(hn::DemoteTo(d8, v), d8, lanes);
          std::memcpy(to + i, lanes, std::min(hn::Lanes(d8), cols - i));
        });
  }
}

void DequantizeRows(const int8_t* q, const float* scales, int64_t rows, size_t cols, float* x) {
  const FloatTag d;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t skip = size_t(row) * cols;
    const FloatVector scale = hn::Set(d, scales[row]);
    over_row(cols, [&](size_t i, auto access) HWY_ATTR {
      access.store(hn::Mul(load_bytes(access, q + skip + i), scale), d, x + skip + i);
    });
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/parallel.h"

namespace snug {
namespace {

HWY_EXPORT(QuantizeRows);
HWY_EXPORT(DequantizeRows);

}  // namespace

void quantize_rows(const float* x, int64_t rows, int64_t cols, int8_t* q, float* scales) {
  over_ranges(rows, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(QuantizeRows)
    (x + begin * cols, end - begin, size_t(cols), q + begin * cols, scales + begin);
  });
}

void dequantize_rows(const int8_t* q, const float* scales, int64_t rows, int64_t cols, float* x) {
  over_ranges(rows, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DequantizeRows)
    (q + begin * cols, scales + begin, end - begin, size_t(cols), x + begin * cols);
  });
}

}  // namespace snug
#endif  // HWY_ONCE
