// Products of every kind, type and odd size against fp64.
#include "cuda/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cuda/cuda_test_util.h"
#include "cuda/gpu.h"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

struct Matrix {
  Doubles values;  // as the device sees them: rounded to the type
  int64_t cols = 0;
  double at(int64_t r, int64_t c) const { return values[size_t(r * cols + c)]; }
};

double eps_of(DType dtype) { return dtype == DType::kBF16 ? 0x1p-7 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-23; }

void check(Products& products, const Gpu& gpu, const ProductShape& shape) {
  SCOPED_TRACE(testing::Message() << "kind " << int(shape.kind) << ", " << dtype_name(shape.dtype) << ", " << shape.rows << " x "
                                  << shape.in << " x " << shape.out);
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const auto make = [&](int64_t rows, int64_t cols, DType dtype) {
    Doubles values(size_t(rows * cols));
    for (double& v : values) v = normal(random);
    return Matrix{decoded(encoded(values, dtype), dtype), cols};
  };
  const bool forward = shape.kind == ProductKind::kForward, weights = shape.kind == ProductKind::kWeightGradient;
  const Matrix left = make(shape.rows, forward ? shape.in : shape.out, shape.dtype);
  const Matrix right = weights ? make(shape.rows, shape.in, shape.dtype) : make(shape.out, shape.in, shape.dtype);
  const Matrix bias = make(1, shape.out, shape.dtype);
  const DType result_type = weights ? DType::kF32 : shape.dtype;
  const int64_t rows = weights ? shape.out : shape.rows, cols = forward ? shape.out : shape.in;
  const int64_t depth = forward ? shape.in : weights ? shape.rows : shape.out;
  const Matrix before = make(rows, cols, result_type);

  const DeviceBytes l(encoded(left.values, shape.dtype)), r(encoded(right.values, shape.dtype)), b(encoded(bias.values, shape.dtype));
  const DeviceBytes warm(encoded(before.values, result_type)), y(encoded(before.values, result_type));
  const DeviceBytes workspace(kProductWorkspaceBytes);
  const std::span<std::byte> scratch(workspace.data<std::byte>(), kProductWorkspaceBytes);
  ProductTensors tensors{l.data(), r.data(), shape.bias ? b.data() : nullptr, warm.data()};
  products.run(shape, tensors, scratch, gpu.stream());  // times candidates, which adds up
  tensors.result = y.data();
  products.run(shape, tensors, scratch, gpu.stream());
  SNUG_CUDA(cudaStreamSynchronize(gpu.stream()));
  const Doubles got = decoded(y.download(), result_type);

  // fp32 sums of `depth` products of size about one, then one rounding of the result.
  const double sum_error = 8 * 0x1p-23 * double(depth) + 1e-6;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double want = weights || shape.accumulate ? before.at(i, j) : 0;
      if (shape.bias) want += bias.at(0, j);
      for (int64_t k = 0; k < depth; ++k) {
        if (forward) want += left.at(i, k) * right.at(j, k);
        else if (weights) want += left.at(k, i) * right.at(k, j);
        else want += left.at(i, k) * right.at(k, j);
      }
      // Where it adds to what is there, the library rounds the product to the result's type first.
      const double roundings = std::abs(want) + (shape.accumulate ? std::abs(want - before.at(i, j)) : 0);
      ASSERT_NEAR(got[size_t(i * cols + j)], want, sum_error + 0.51 * eps_of(result_type) * roundings) << i << ", " << j;
    }
  }
}

TEST(CudaProducts, MatchFp64) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, {}, false);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype == DType::kBF16 && !gpu.has_bf16()) continue;
    for (const auto& [rows, in, out] : {std::array<int64_t, 3>{128, 64, 192}, {37, 48, 3}, {1, 17, 5}, {130, 7, 2}, {256, 96, 41}}) {
      check(products, gpu, {ProductKind::kForward, dtype, rows, in, out, true, false});
      check(products, gpu, {ProductKind::kForward, dtype, rows, in, out, false, false});
      check(products, gpu, {ProductKind::kInputGradient, dtype, rows, in, out, false, false});
      check(products, gpu, {ProductKind::kInputGradient, dtype, rows, in, out, false, true});
      check(products, gpu, {ProductKind::kWeightGradient, dtype, rows, in, out, false, false});
    }
  }
}

}  // namespace
}  // namespace snug::cuda
