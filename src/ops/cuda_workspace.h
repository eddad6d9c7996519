// Scratch that CUDA kernels need, as figures a plan can use where there is no GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/op.h"

namespace snug {

// What cuBLASLt may use during one product: its own advice for Hopper; older cards need less.
inline constexpr size_t kProductWorkspaceBytes = size_t{32} << 20;

// Sums over rows are taken in up to so many pieces, one per multiprocessor of an H100, which are
// then added in order.
inline constexpr int64_t kColumnSumPieces = 132;

constexpr size_t column_sum_bytes(int64_t cols, int64_t sums) {
  return size_t(kColumnSumPieces * cols * sums) * sizeof(float);
}

// Losses of rows (fp64), which are then added in order.
constexpr size_t row_losses_bytes(const Device& device, int64_t rows) {
  return device.kind == DeviceKind::kCuda ? size_t(rows) * sizeof(double) : 0;
}

// The workspace of a language model's head and loss (ops/vocabulary_loss.h), as offsets from its
// beginning. Rows of the logits are padded to whole chunks of memory, which products of odd
// vocabularies need to be fast.
struct VocabularyLossWorkspace {
  static constexpr int64_t kAlign = 256;

  struct Needs {
    int64_t chunk = 0, vocabulary = 0;
    size_t element_bytes = 0;
    bool bias_gradient = false;
    bool distils = false;
  };

  int64_t row_stride = 0;  // elements from one row of logits to the next
  size_t logits = 0;       // [chunk, row_stride] in the compute type
  size_t teacher = 0;      // a teacher's logits of the same shape, where there is one
  size_t losses = 0;       // [chunk] fp64
  size_t column_sums = 0;  // of the bias's gradient, where it is wanted
  size_t products = 0;     // kProductWorkspaceBytes
  size_t bytes = 0;

  constexpr explicit VocabularyLossWorkspace(const Needs& needs) {
    const auto take = [this](size_t& at, size_t size) {
      at = bytes;
      bytes += (size + kAlign - 1) / kAlign * kAlign;
    };
    row_stride = (needs.vocabulary + 63) / 64 * 64;
    const size_t logits_bytes = size_t(needs.chunk * row_stride) * needs.element_bytes;
    take(logits, logits_bytes);
    take(teacher, needs.distils ? logits_bytes : 0);
    take(losses, size_t(needs.chunk) * sizeof(double));
    take(column_sums, needs.bias_gradient ? column_sum_bytes(needs.vocabulary, 1) : 0);
    take(products, kProductWorkspaceBytes);
  }
};

// The workspace of products with a weight [out, in] that is int8: it is converted to the compute
// type.
struct DequantizedWorkspace {
  static constexpr int64_t kAlign = 256;

  size_t weight = 0;    // [out, in]
  size_t products = 0;  // kProductWorkspaceBytes
  size_t bytes = 0;

  constexpr DequantizedWorkspace(int64_t in, int64_t out, size_t element_bytes) {
    products = (size_t(in * out) * element_bytes + kAlign - 1) / kAlign * kAlign;
    bytes = products + kProductWorkspaceBytes;
  }
};

// Whether cuBLASLt multiplies bytes of these sizes; other weights are converted.
constexpr bool multiplies_bytes(int64_t in, int64_t out) { return in % 16 == 0 && out % 16 == 0; }

// The workspace of such a product where it multiplies bytes, which gives 32-bit integers.
struct QuantizedLinearWorkspace {
  static constexpr int64_t kAlign = 256;

  size_t x = 0;         // [rows, in] int8
  size_t scales = 0;    // [rows] fp32
  size_t sums = 0;      // [rows, out] int32
  size_t products = 0;  // kProductWorkspaceBytes
  size_t bytes = 0;

  constexpr QuantizedLinearWorkspace(int64_t rows, int64_t in, int64_t out, size_t element_bytes) {
    if (!multiplies_bytes(in, out)) {
      bytes = DequantizedWorkspace(in, out, element_bytes).bytes;
      return;
    }
    const auto take = [this](size_t& at, size_t size) {
      at = bytes;
      bytes += (size + kAlign - 1) / kAlign * kAlign;
    };
    take(x, size_t(rows * in));
    take(scales, size_t(rows) * sizeof(float));
    take(sums, size_t(rows * out) * sizeof(int32_t));
    take(products, kProductWorkspaceBytes);
  }
};

}  // namespace snug
