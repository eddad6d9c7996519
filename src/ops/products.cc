#include "ops/products.h"

#include <cblas.h>
#include <sys/mman.h>

#include <algorithm>

#include "core/error.h"
#include "core/threads.h"

namespace snug {

namespace {

struct BlasDims {
  blasint rows, in, out, out_stride, in_stride;
  explicit BlasDims(const ProductDims& dims)
      : rows(blasint(dims.rows)),
        in(blasint(dims.in)),
        out(blasint(dims.out)),
        out_stride(blasint(dims.out_stride > 0 ? dims.out_stride : dims.out)),
        in_stride(blasint(dims.in_stride > 0 ? dims.in_stride : dims.in)) {}
};

float kept(Write write) { return write == Write::kAdd ? 1.0f : 0.0f; }

// OpenBLAS packs the operand that has the result's rows whole, so it gets so many of them at a
// time: its buffers stay small, and warm_up_products() can fill them.
constexpr int64_t kRowsAtOnce = 8192;

// Calls f(first, count) for the parts of so many rows of a result.
template <class F>
void in_parts(int64_t rows, const F& f) {
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    f(first, blasint(std::min(kRowsAtOnce, rows - first)));
  }
}

}  // namespace

void product_nt(const ProductDims& dims, const float* x, const float* w, float* y, Write write) {
  const BlasDims d(dims);
  in_parts(dims.rows, [&](int64_t row, blasint rows) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, d.out, d.in, dims.scale,
                x + row * d.in_stride, d.in_stride, w, d.in, kept(write), y + row * d.out_stride,
                d.out_stride);
  });
}

void product_nn(const ProductDims& dims, const float* dy, const float* w, float* dx, Write write) {
  const BlasDims d(dims);
  in_parts(dims.rows, [&](int64_t row, blasint rows) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d.in, d.out, dims.scale,
                dy + row * d.out_stride, d.out_stride, w, d.in, kept(write), dx + row * d.in_stride,
                d.in_stride);
  });
}

void product_tn(const ProductDims& dims, const float* dy, const float* x, float* dw) {
  const BlasDims d(dims);
  in_parts(dims.out, [&](int64_t column, blasint columns) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, columns, d.in, d.rows, dims.scale,
                dy + column, d.out_stride, x, d.in_stride, 1.0f, dw + column * d.in, d.in);
  });
}

namespace {

// Zeros to read from: pages nobody has written share one zero page and occupy nothing.
class Scratch {
 public:
  Scratch(int64_t floats, int protection) : bytes_(size_t(floats) * sizeof(float)) {
    data_ = mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
      fail(ErrorKind::kBudget, "cannot map {} bytes for warming up the matrix products", bytes_);
    }
  }
  ~Scratch() { munmap(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  float* data() const { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace

void warm_up_products(int64_t largest_dim, int64_t rows) {
  // OpenBLAS cuts the inner dimension into pieces, packs one operand whole and of the other a block
  // for each thread. Pieces and blocks are as large as its limits for the processor when a
  // dimension is that large or twice as large, and smaller in between. The limits below are above
  // its own on the processors it knows, and multiples of kStep.
  constexpr int64_t kBlockLimit = 1024, kInnerLimit = 1024, kStep = 64, kFew = 32;
  const int64_t longest = std::max(largest_dim, rows), threads = num_threads();
  const int64_t whole = std::min(longest, kRowsAtOnce), block = std::min(largest_dim, kBlockLimit);
  const int64_t wide = std::min(largest_dim, 2 * kBlockLimit * threads);
  const Scratch x(std::max(whole, kBlockLimit) * kInnerLimit, PROT_READ);
  const Scratch w(std::max(wide, kBlockLimit) * kInnerLimit, PROT_READ);
  const Scratch y(std::max(whole * block, kBlockLimit * wide), PROT_READ | PROT_WRITE);
  const auto multiply = [&](int64_t row_count, int64_t inner, int64_t columns) {
    product_nt({row_count, inner, columns}, x.data(), w.data(), y.data(), Write::kOverwrite);
  };
  for (int64_t inner : {kInnerLimit, int64_t{768}, int64_t{640}, int64_t{512}, int64_t{448},
                        int64_t{384}, int64_t{320}, longest}) {
    // Twice the smaller ones is cut into the same pieces.
    if (inner > std::min(longest, kInnerLimit) ||
        (longest >= kInnerLimit && inner <= kInnerLimit / 2)) {
      continue;
    }
    // Which is packed whole where there are more columns than a block.
    multiply(whole, inner, block);
    multiply(std::min(rows, kBlockLimit), inner, wide);
    // Of few rows, threads share the columns; of many, the rows, and each has all columns.
    for (int64_t columns = kStep; columns <= block; columns += kStep) {
      if (columns * threads <= largest_dim) {
        multiply(std::min(rows, kFew), inner, columns * threads);
      } else {
        multiply(std::min(longest, columns * threads), inner, columns);
      }
    }
  }
  // Small enough for one thread, which then uses its buffer otherwise.
  for (int64_t size : {16, 48, 100}) {
    const int64_t dim = std::min(size, largest_dim);
    multiply(std::min(size, rows), dim, dim);
  }
}

}  // namespace snug
