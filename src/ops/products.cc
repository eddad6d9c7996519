#include "ops/products.h"

#include <cblas.h>
#include <sys/mman.h>

#include <algorithm>

#include "core/error.h"

namespace snug {

namespace {

struct BlasDims {
  blasint rows, in, out, stride;
  explicit BlasDims(const ProductDims& dims)
      : rows(blasint(dims.rows)),
        in(blasint(dims.in)),
        out(blasint(dims.out)),
        stride(blasint(dims.out_stride > 0 ? dims.out_stride : dims.out)) {}
};

float kept(Write write) { return write == Write::kAdd ? 1.0f : 0.0f; }

}  // namespace

void product_nt(const ProductDims& dims, const float* x, const float* w, float* y, Write write) {
  const BlasDims d(dims);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, d.rows, d.out, d.in, dims.scale, x, d.in, w, d.in, kept(write), y,
              d.stride);
}

void product_nn(const ProductDims& dims, const float* dy, const float* w, float* dx, Write write) {
  const BlasDims d(dims);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, d.rows, d.in, d.out, dims.scale, dy, d.stride, w, d.in, kept(write),
              dx, d.in);
}

void product_tn(const ProductDims& dims, const float* dy, const float* x, float* dw) {
  const BlasDims d(dims);
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, d.out, d.in, d.rows, dims.scale, dy, d.stride, x, d.in, 1.0f, dw, d.in);
}

namespace {

// Zeros to read from: pages nobody has written share one zero page and occupy nothing.
class Scratch {
 public:
  Scratch(int64_t floats, int protection) : bytes_(size_t(floats) * sizeof(float)) {
    data_ = mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED)
      fail(ErrorKind::kBudget, "cannot map {} bytes for warming up the matrix products", bytes_);
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
  // OpenBLAS packs one operand whole, up to a limit, and the other in blocks. The limits below are
  // above its own on the processors it knows. The whole operand is only packed whole when the
  // product has more columns than a block.
  constexpr int64_t kWholeLimit = 32768, kBlockLimit = 1024, kInnerLimit = 1024;
  const int64_t longest = std::max(largest_dim, rows);
  const int64_t whole = std::min(longest, kWholeLimit), block = std::min(largest_dim, kBlockLimit);
  const Scratch x(std::max(whole, kBlockLimit) * kInnerLimit, PROT_READ);
  const Scratch w(std::max(largest_dim, kBlockLimit) * kInnerLimit, PROT_READ);
  const Scratch y(std::max(whole * block, kBlockLimit * largest_dim), PROT_READ | PROT_WRITE);
  // Inner dimensions are cut into pieces, and a long one not always into the largest: try several.
  for (int64_t inner : {kInnerLimit, int64_t{768}, int64_t{640}, int64_t{512}, int64_t{384},
                        int64_t{320}, longest}) {
    if (inner > longest || inner > kInnerLimit) continue;
    product_nt({whole, inner, block}, x.data(), w.data(), y.data(), Write::kOverwrite);
    product_nt({std::min(rows, kBlockLimit), inner, largest_dim}, x.data(), w.data(), y.data(),
               Write::kOverwrite);
    if (inner == kInnerLimit) break;
  }
  // Small enough for one thread, which then uses its buffer otherwise.
  for (int64_t size : {16, 48, 100}) {
    const int64_t dim = std::min(size, largest_dim);
    product_nt({std::min(size, rows), dim, dim}, x.data(), w.data(), y.data(), Write::kOverwrite);
  }
}

}  // namespace snug
