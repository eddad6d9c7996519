// Highway's own name for processors with dot products of bytes, which it otherwise leaves out to
// save time.
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif

#include "ops/quantized_products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantized_products.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "ops/activation-inl.h"
#include "ops/quantize-inl.h"
#include "ops/simd-inl.h"

#ifndef SNUG_OPS_QUANTIZED_PRODUCTS_ARGUMENTS_
#define SNUG_OPS_QUANTIZED_PRODUCTS_ARGUMENTS_
namespace snug {

inline constexpr size_t kRowBlock = 192;  // rows of x that are quantised and multiplied at a time
// Output channels that one thread does at a time: panels of any target fit.
inline constexpr size_t kStripColumns = 32;
inline constexpr size_t kFewRows = 6;  // up to so many rows the weights are read where they are
inline constexpr size_t kTileRows = 6;
// Inputs that belong together: four bytes, or two pairs of 16 bits.
inline constexpr size_t kQuad = 4;

// Whole vectors of 16-bit values.
constexpr size_t padded_inputs(size_t in) { return (in + 31) / 32 * 32; }

// What a thread works with.
struct QuantizedScratch {
  std::byte* x;    // [kRowBlock, padded inputs], bytes or 16 bits
  float* scales;   // [kRowBlock]
  int32_t* panel;  // [steps, channels]: the weights of some channels as the tiles read them

  static constexpr size_t bytes(size_t in) {
    return kRowBlock * padded_inputs(in) * sizeof(int16_t) + kRowBlock * sizeof(float) +
           kStripColumns * padded_inputs(in) * sizeof(int16_t);
  }
  static QuantizedScratch at(std::byte* base, size_t in) {
    std::byte* const scales = base + kRowBlock * padded_inputs(in) * sizeof(int16_t);
    return {base, reinterpret_cast<float*>(scales),
            reinterpret_cast<int32_t*>(scales + kRowBlock * sizeof(float))};
  }
};

struct QuantizedArguments {
  ProductDims dims;
  const float* x;
  QuantizedMatrix w;
  QuantizedResult result;
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

HWY_INLINE uint32_t load_word(const void* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// A step of a tile multiplies 32 bits of a row of x with 32 bits of each channel. How is a matter
// of the processor.

#if HWY_TARGET == HWY_SCALAR
struct Multiplier {
  using X = int8_t;
  static constexpr size_t kSteps = 1;     // for a quad
  static constexpr int32_t kXOffset = 0;  // added to x to make it unsigned

  struct Sum {
    IntVector sum;

    void clear() { sum = hn::Zero(IntTag()); }
    void multiply_add(IntVector x, IntVector w) {
      const uint32_t x_word = uint32_t(hn::GetLane(x)), w_word = uint32_t(hn::GetLane(w));
      for (int shift = 0; shift < 32; shift += 8) {
        sum = hn::Add(sum, hn::Set(IntTag(), int8_t(x_word >> shift) * int8_t(w_word >> shift)));
      }
    }
    IntVector total() const { return sum; }
  };

  static void store_steps(IntVector quads, int32_t* panel, size_t) {
    hn::StoreU(quads, IntTag(), panel);
  }
};
#else
using ShortTag = hn::Repartition<int16_t, FloatTag>;

// As pairs of 16-bit values: products of bytes are exact there, and so are the sums of two.
struct Pairs {
  using X = int16_t;
  static constexpr size_t kSteps = 2;
  static constexpr int32_t kXOffset = 0;

  // In two parts, as some targets need.
  struct Sum {
    IntVector first, second;

    HWY_INLINE void clear() { first = second = hn::Zero(IntTag()); }
    HWY_INLINE void multiply_add(IntVector x, IntVector w) {
      const ShortTag d;
      first = hn::ReorderWidenMulAccumulate(IntTag(), hn::BitCast(d, x), hn::BitCast(d, w), first,
                                            second);
    }
    HWY_INLINE IntVector total() const { return hn::RearrangeToOddPlusEven(first, second); }
  };

  // The quads of a vector of channels, for the two steps. Bytes 0 and 1 of each go into the first.
  static HWY_INLINE void store_steps(IntVector quads, int32_t* panel, size_t step) {
    const hn::Repartition<uint8_t, FloatTag> d8;
    const ShortTag d;
    alignas(16) static constexpr uint8_t kOrder[16] = {0, 2,  1, 3,  4,  6,  5,  7,
                                                       8, 10, 9, 11, 12, 14, 13, 15};
    const auto mixed =
        hn::BitCast(d, hn::TableLookupBytes(hn::BitCast(d8, quads), hn::LoadDup128(d8, kOrder)));
    hn::StoreU(hn::BitCast(IntTag(), hn::ShiftRight<8>(hn::ShiftLeft<8>(mixed))), IntTag(), panel);
    hn::StoreU(hn::BitCast(IntTag(), hn::ShiftRight<8>(mixed)), IntTag(), panel + step);
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
// As quads of bytes, of which those of x must be unsigned: they are 128 too large, which is
// subtracted at the end.
struct Multiplier {
  using X = uint8_t;
  static constexpr size_t kSteps = 1;
  static constexpr int32_t kXOffset = 128;

  struct Sum {
    IntVector sum;

    HWY_INLINE void clear() { sum = hn::Zero(IntTag()); }
    // Not all versions of Highway know the instruction, nor do they tell the compiler that it is
    // there.
    HWY_INLINE void multiply_add(IntVector x, IntVector w) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(w.raw));
    }
    HWY_INLINE IntVector total() const { return sum; }
  };

  static HWY_INLINE void store_steps(IntVector quads, int32_t* panel, size_t) {
    hn::StoreU(quads, IntTag(), panel);
  }
};
#else
using Multiplier = Pairs;
#endif
#endif  // HWY_SCALAR

constexpr size_t kTileVectors = 2;
HWY_INLINE size_t panel_columns() { return kTileVectors * hn::Lanes(FloatTag()); }

// Rows of x as integers, offset and with zeros behind their end up to whole vectors.
template <class Format>
HWY_INLINE void quantize_block(const QuantizedArguments& a, size_t first, size_t rows,
                               const QuantizedScratch& scratch) {
  using X = typename Format::X;
  const size_t in = size_t(a.dims.in), stride = padded_inputs(in);
  const hn::Rebind<X, IntTag> d;
  for (size_t row = 0; row < rows; ++row) {
    X* const to = reinterpret_cast<X*>(scratch.x) + row * stride;
    // Vectors of the padding are written first: the last vector of the row overlaps them.
    std::fill(to + in / hn::Lanes(d) * hn::Lanes(d), to + stride, X(Format::kXOffset));
    scratch.scales[row] =
        quantize_row(a.x + (first + row) * in, in, [&](size_t i, auto, IntVector v) HWY_ATTR {
          hn::StoreU(hn::DemoteTo(d, hn::Add(v, hn::Set(IntTag(), Format::kXOffset))), d, to + i);
        });
  }
}

// The weights of a panel's channels, step by step: 32 bits of each channel beside each other.
// Channels that are not there are zero. offsets[channel] is what the sums are too large by.
HWY_INLINE void pack_panel(const QuantizedArguments& a, size_t column, int32_t* panel,
                           int32_t* offsets) {
  constexpr size_t kChunk = 16;  // quads at a time, in the first-level cache
  const IntTag d;
  const size_t in = size_t(a.dims.in), quads = (in + kQuad - 1) / kQuad, width = panel_columns();
  const size_t present = std::min(width, size_t(a.dims.out) - column);
  const int8_t* const w = a.w.values + column * in;
  HWY_ALIGN int32_t chunk[kChunk][kStripColumns];
  for (size_t first = 0; first < quads; first += kChunk) {
    const size_t here = std::min(kChunk, quads - first),
                 whole = std::min(here, in / kQuad - std::min(first, in / kQuad));
    for (size_t c = 0; c < width; ++c) {
      const int8_t* const from = w + c * in + first * kQuad;
      for (size_t q = 0; q < here; ++q) {
        uint32_t word = 0;
        if (c < present) {
          if (q < whole) {
            word = load_word(from + q * kQuad);
          } else {
            std::memcpy(&word, from + q * kQuad, in % kQuad);
          }
        }
        chunk[q][c] = int32_t(word);
      }
    }
    for (size_t q = 0; q < here; ++q) {
      int32_t* const to = panel + (first + q) * Multiplier::kSteps * width;
      for (size_t c = 0; c < width; c += hn::Lanes(d)) {
        Multiplier::store_steps(hn::LoadU(d, chunk[q] + c), to + c, width);
      }
    }
  }
  if constexpr (Multiplier::kXOffset != 0) {
    for (size_t c = 0; c < present; ++c) {
      int32_t sum = 0;
      for (size_t i = 0; i < in; ++i) sum += w[c * in + i];
      offsets[c] = Multiplier::kXOffset * sum;
    }
  }
}

// sums[kRows, panel] of the rows from x on.
template <size_t kRows>
HWY_NOINLINE void multiply_tile(const std::byte* HWY_RESTRICT x, size_t x_stride,
                                const int32_t* HWY_RESTRICT panel, size_t steps,
                                int32_t* HWY_RESTRICT sums) {
  const IntTag d;
  const size_t lanes = hn::Lanes(d), width = kTileVectors * lanes;
  Multiplier::Sum tile[kRows][kTileVectors];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kTileVectors; ++j) tile[i][j].clear();
  }
#pragma GCC unroll 2
  for (size_t step = 0; step < steps; ++step, panel += width) {
    IntVector channels[kTileVectors];
#pragma GCC unroll 8
    for (size_t j = 0; j < kTileVectors; ++j) channels[j] = hn::LoadU(d, panel + j * lanes);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
      const IntVector row =
          hn::Set(d, int32_t(load_word(x + i * x_stride + step * sizeof(uint32_t))));
#pragma GCC unroll 8
      for (size_t j = 0; j < kTileVectors; ++j) tile[i][j].multiply_add(row, channels[j]);
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kTileVectors; ++j) {
      hn::StoreU(tile[i][j].total(), d, sums + i * width + j * lanes);
    }
  }
}

template <size_t kRows>
HWY_INLINE void multiply_rows(size_t rows, const std::byte* x, size_t x_stride,
                              const int32_t* panel, size_t steps, int32_t* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return multiply_tile<kRows>(x, x_stride, panel, steps, sums);
    multiply_rows<kRows - 1>(rows, x, x_stride, panel, steps, sums);
  }
}

// Some channels of some rows of the result.
struct Part2d {
  size_t row, rows, column, columns;
};

// What comes behind the sums[rows, stride] of a part.
HWY_INLINE void finish(const QuantizedArguments& a, const Part2d& part, const float* row_scales,
                       const int32_t* sums, size_t stride) {
  const FloatTag d;
  const IntTag di;
  const QuantizedResult& result = a.result;
  with_activation(result.activation, [&]<Activation kActivation>() HWY_ATTR {
    for (size_t row = 0; row < part.rows; ++row) {
      const size_t at = (part.row + row) * size_t(a.dims.out) + part.column;
      const FloatVector row_scale = hn::Set(d, row_scales[row]);
      over_row(part.columns, [&](size_t i, auto access) HWY_ATTR {
        const FloatVector scale = hn::Mul(row_scale, access.load(d, a.w.scales + part.column + i));
        FloatVector x = hn::Mul(hn::ConvertTo(d, hn::LoadU(di, sums + row * stride + i)), scale);
        if (result.bias) x = hn::Add(x, access.load(d, result.bias + part.column + i));
        if (result.pre) access.store(x, d, result.pre + at + i);
        access.store(activate<kActivation>(x), d, result.y + at + i);
      });
    }
  });
}

// A panel of channels for a block of rows.
void multiply_panel(const QuantizedArguments& a, const Part2d& part,
                    const QuantizedScratch& scratch) {
  const size_t width = panel_columns(),
               x_stride = padded_inputs(size_t(a.dims.in)) * sizeof(Multiplier::X);
  const size_t steps = (size_t(a.dims.in) + kQuad - 1) / kQuad * Multiplier::kSteps;
  HWY_ALIGN int32_t sums[kTileRows * kStripColumns], offsets[kStripColumns] = {};
  pack_panel(a, part.column, scratch.panel, offsets);
  for (size_t row = 0; row < part.rows; row += kTileRows) {
    const size_t rows = std::min(kTileRows, part.rows - row);
    multiply_rows<kTileRows>(rows, scratch.x + row * x_stride, x_stride, scratch.panel, steps,
                             sums);
    if constexpr (Multiplier::kXOffset != 0) {
      for (size_t i = 0; i < rows * width; ++i) sums[i] -= offsets[i % width];
    }
    finish(a, {part.row + row, rows, part.column, part.columns}, scratch.scales + row, sums, width);
  }
}

#if HWY_TARGET != HWY_SCALAR
// sums[row] of up to kRows rows with one channel.
template <size_t kRows>
HWY_INLINE void multiply_channel(const int16_t* x, size_t x_stride, const int8_t* w, size_t in,
                                 int32_t* sums, size_t sums_stride) {
  const ShortTag d;
  const hn::Rebind<int8_t, ShortTag> d8;
  const size_t lanes = hn::Lanes(d);
  Pairs::Sum total[kRows];
#pragma GCC unroll 8
  for (size_t row = 0; row < kRows; ++row) total[row].clear();
  const auto add = [&](size_t i, const int8_t* from) HWY_ATTR {
    const auto channel = hn::BitCast(IntTag(), hn::PromoteTo(d, hn::LoadU(d8, from)));
#pragma GCC unroll 8
    for (size_t row = 0; row < kRows; ++row) {
      total[row].multiply_add(hn::BitCast(IntTag(), hn::LoadU(d, x + row * x_stride + i)), channel);
    }
  };
  size_t i = 0;
  for (; i + lanes <= in; i += lanes) add(i, w + i);
  if (i < in) {
    int8_t rest[32] = {};
    std::memcpy(rest, w + i, in - i);
    add(i, rest);
  }
#pragma GCC unroll 8
  for (size_t row = 0; row < kRows; ++row) {
    sums[row * sums_stride] = hn::GetLane(hn::SumOfLanes(IntTag(), total[row].total()));
  }
}

// A strip of channels for a few rows: each weight is read once, so that is what the time goes to.
void multiply_channels(const QuantizedArguments& a, const Part2d& part,
                       const QuantizedScratch& scratch) {
  const size_t in = size_t(a.dims.in), x_stride = padded_inputs(in);
  HWY_ALIGN int32_t sums[kFewRows * kStripColumns];
  const auto* const x = reinterpret_cast<const int16_t*>(scratch.x);
  for (size_t c = 0; c < part.columns; ++c) {
    const int8_t* const w = a.w.values + (part.column + c) * in;
    size_t row = 0;
    for (; row + 2 <= part.rows; row += 2) {
      multiply_channel<2>(x + row * x_stride, x_stride, w, in, sums + row * kStripColumns + c,
                          kStripColumns);
    }
    if (row < part.rows) {
      multiply_channel<1>(x + row * x_stride, x_stride, w, in, sums + row * kStripColumns + c,
                          kStripColumns);
    }
  }
  finish(a, part, scratch.scales, sums, kStripColumns);
}
#endif

// Strips [begin, end) of the result: those of the first block of rows, then those of the next.
void QuantizedProduct(const QuantizedArguments& a, size_t begin, size_t end, std::byte* workspace) {
  const size_t all_rows = size_t(a.dims.rows), out = size_t(a.dims.out),
               strips = (out + kStripColumns - 1) / kStripColumns;
  const QuantizedScratch scratch = QuantizedScratch::at(workspace, size_t(a.dims.in));
  for (size_t strip = begin; strip < end; ++strip) {
    const size_t row = strip / strips * kRowBlock, rows = std::min(kRowBlock, all_rows - row);
    const size_t column = strip % strips * kStripColumns,
                 columns = std::min(kStripColumns, out - column);
    const bool new_rows = strip == begin || column == 0;
#if HWY_TARGET != HWY_SCALAR
    if (rows <= kFewRows) {
      if (new_rows) quantize_block<Pairs>(a, row, rows, scratch);
      multiply_channels(a, {row, rows, column, columns}, scratch);
      continue;
    }
#endif
    if (new_rows) quantize_block<Multiplier>(a, row, rows, scratch);
    for (size_t c = 0; c < columns; c += panel_columns()) {
      multiply_panel(a, {row, rows, column + c, std::min(panel_columns(), columns - c)}, scratch);
    }
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/error.h"
#include "ops/parallel.h"
#include "ops/quantize.h"

namespace snug {
namespace {

HWY_EXPORT(QuantizedProduct);

constexpr int64_t kMostInputs = 65536;  // of which sums of 255 * 127 stay below 2^31
// Of the weight at a time: as deep as products need to be fast.
constexpr int64_t kDequantizedRows = 256;

}  // namespace

size_t quantized_product_workspace(int64_t in, int threads) {
  return QuantizedScratch::bytes(size_t(in)) * size_t(threads);
}

void quantized_product_nt(const ProductDims& dims, const float* x, const QuantizedMatrix& w,
                          const QuantizedResult& result, std::span<std::byte> workspace) {
  const size_t of_thread = QuantizedScratch::bytes(size_t(dims.in));
  SNUG_CHECK(dims.in <= kMostInputs &&
             workspace.size() >= of_thread * size_t(omp_get_max_threads()));
  const auto blocks_of = [](int64_t count, size_t size) {
    return (count + int64_t(size) - 1) / int64_t(size);
  };
  over_ranges(blocks_of(dims.rows, kRowBlock) * blocks_of(dims.out, kStripColumns), 1,
              [&](int64_t begin, int64_t end) {
                std::byte* const own = workspace.data() + size_t(omp_get_thread_num()) * of_thread;
                HWY_DYNAMIC_DISPATCH(QuantizedProduct)
                ({dims, x, w, result}, size_t(begin), size_t(end), own);
              });
}

size_t dequantized_product_workspace(int64_t in, int64_t out) {
  return size_t(in * std::min(out, kDequantizedRows)) * sizeof(float);
}

void dequantized_product_nn(const ProductDims& dims, const float* dy, const QuantizedMatrix& w,
                            float* dx, Write write, std::span<std::byte> workspace) {
  SNUG_CHECK(workspace.size() >= dequantized_product_workspace(dims.in, dims.out));
  auto* const tile = reinterpret_cast<float*>(workspace.data());
  for (int64_t first = 0; first < dims.out; first += kDequantizedRows) {
    const int64_t here = std::min(kDequantizedRows, dims.out - first);
    dequantize_rows(w.values + first * dims.in, w.scales + first, here, dims.in, tile);
    product_nn({dims.rows, dims.in, here, dims.out_stride > 0 ? dims.out_stride : dims.out},
               dy + first, tile, dx, first == 0 ? write : Write::kAdd);
  }
}

}  // namespace snug
#endif  // HWY_ONCE
