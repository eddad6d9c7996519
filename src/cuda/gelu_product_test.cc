// Hopper's products with GELU against fp64, and bit by bit against GELU as a kernel of its own.
#include "cuda/gelu_product.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "cuda/cuda_test_util.h"
#include "cuda/gpu.h"
#include "ops/activation_reference.h"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

constexpr DType kTypes[] = {DType::kBF16, DType::kF16};
constexpr WeightLayout kLayouts[] = {WeightLayout::kOutIn, WeightLayout::kInOut};
constexpr Activation kForms[] = {Activation::kGelu, Activation::kGeluTanh, Activation::kKeptSlope};

struct Values {
  Values(size_t count, DType dtype, double deviation, std::mt19937& random) : dtype(dtype) {
    std::normal_distribution<double> normal(0.0, deviation);
    at.resize(count);
    for (double& v : at) v = normal(random);
    at = decoded(encoded(at, dtype), dtype);
  }
  std::vector<std::byte> bytes() const { return encoded(at, dtype); }

  DType dtype;
  Doubles at;  // rounded to the type
};

bool may_keep_slopes(const ProductShape& shape) {
  const int64_t cols = shape.kind == ProductKind::kForward ? shape.out : shape.in;
  return shape.dtype != DType::kBF16 || cols % SlopeBytes::kGroup == 0;
}

// Both kinds as one: result[rows, cols] from left[rows, depth] and the weight.
class Case {
 public:
  Case(const Gpu& gpu, const ProductShape& shape)
      : gpu_(gpu),
        shape_(shape),
        gradient_(shape.kind == ProductKind::kInputGradient),
        cols_(gradient_ ? shape.in : shape.out),
        depth_(gradient_ ? shape.out : shape.in),
        random_(11),
        left_(size_t(shape.rows * depth_), shape.dtype, 1.0, random_),
        weight_(size_t(shape.in * shape.out), shape.dtype, 1.0 / std::sqrt(double(depth_)),
                random_),
        bias_(size_t(cols_), shape.dtype, 0.5, random_),
        argument_(size_t(shape.rows * cols_),
                  is_gelu(shape.gelu_form) ? shape.dtype : slope_type(shape.dtype), 1.5, random_),
        before_(size_t(cols_), DType::kF32, 1.0, random_),
        left_bytes_(left_.bytes()),
        weight_bytes_(weight_.bytes()),
        bias_bytes_(bias_.bytes()) {}

  void check() const { gradient_ ? check_gradient() : check_forward(); }

 private:
  struct Outcome {
    std::vector<std::byte> result, argument, sums;
  };

  static constexpr bool keeps(ProductGelu gelu) { return gelu != ProductGelu::kForgets; }

  // Twice, which must be the same.
  Outcome run(ProductGelu gelu, bool with_sums = false) const {
    return run(gelu, with_sums, shape_.gelu_form, argument_.bytes());
  }
  Outcome run(ProductGelu gelu, bool with_sums, Activation form,
              const std::vector<std::byte>& given) const {
    Outcome outcomes[2];
    for (Outcome& outcome : outcomes) {
      const DeviceBytes y(size_t(shape_.rows * cols_ * 2)), sums(before_.bytes()),
          workspace(kProductWorkspaceBytes);
      const bool slopes = gelu == ProductGelu::kKeepsSlope;
      const DeviceBytes argument =
          gradient_ ? DeviceBytes(given) : DeviceBytes(slopes ? slope_bytes() : y.size());
      ProductShape shape = shape_;
      shape.gelu = gelu;
      shape.gelu_form = form;
      const ProductTensors tensors{.left = left_bytes_.data(),
                                   .right = weight_bytes_.data(),
                                   .bias = shape.bias ? bias_bytes_.data() : nullptr,
                                   .result = y.data(),
                                   .argument = keeps(gelu) ? argument.data() : nullptr,
                                   .column_sums = with_sums ? sums.data<float>() : nullptr};
      launch_gelu_product(shape, tensors, {workspace.data<std::byte>(), workspace.size()},
                          gpu_.stream());
      SNUG_CUDA(cudaStreamSynchronize(gpu_.stream()));
      EXPECT_TRUE(y.guards_intact() && argument.guards_intact() && sums.guards_intact() &&
                  workspace.guards_intact());
      outcome = {y.download(), argument.download(), sums.download()};
    }
    EXPECT_EQ(outcomes[0].result, outcomes[1].result) << "two runs differ";
    EXPECT_EQ(outcomes[0].sums, outcomes[1].sums) << "two runs differ";
    return outcomes[0];
  }

  double product(int64_t row, int64_t col) const {
    const bool weight_rows_are_cols = gradient_ == (shape_.layout == WeightLayout::kInOut);
    double sum = 0;
    for (int64_t k = 0; k < depth_; ++k) {
      const int64_t at = weight_rows_are_cols ? col * depth_ + k : k * cols_ + col;
      sum += left_.at[size_t(row * depth_ + k)] * weight_.at[size_t(at)];
    }
    return sum;
  }
  // Large cases are not checked in every element.
  int64_t stride() const { return shape_.rows * cols_ * depth_ > int64_t{48} << 20 ? 37 : 1; }
  double rounding() const { return shape_.dtype == DType::kBF16 ? 0.51 * 0x1p-7 : 0.51 * 0x1p-10; }
  static constexpr double kGeluError = 8e-6;  // of GELU and its slope in half types
  double sum_error() const { return 8 * 0x1p-23 * std::sqrt(double(depth_)) * 4 + 1e-6; }

  void check_forward() const {
    const Outcome kept = run(ProductGelu::kKeeps), forgotten = run(ProductGelu::kForgets);
    EXPECT_EQ(kept.result, forgotten.result) << "keeping the argument changes the result";
    const Doubles got = decoded(kept.result, shape_.dtype),
                  pre = decoded(kept.argument, shape_.dtype);
    for (int64_t i = 0; i < shape_.rows * cols_; ++i) {
      const double x = pre[size_t(i)], want = activate(shape_.gelu_form, x);
      ASSERT_NEAR(got[size_t(i)], want, rounding() * std::abs(want) + kGeluError) << place(i);
      if (i % stride() != 0) continue;
      const double sum =
          product(i / cols_, i % cols_) + (shape_.bias ? bias_.at[size_t(i % cols_)] : 0.0);
      ASSERT_NEAR(x, sum, sum_error() + rounding() * std::abs(sum)) << place(i);
    }
    if (!may_keep_slopes(shape_)) return;
    const Outcome alone = activation_alone(kept.argument), bent = run(ProductGelu::kKeepsSlope);
    EXPECT_EQ(kept.result, bent.result) << "keeping the slope changes the result";
    EXPECT_EQ(alone.result, kept.result) << "not what the activation alone makes of the argument";
    EXPECT_EQ(alone.argument, bent.argument) << "nor the slope";
  }

  size_t slope_bytes() const {
    return size_t(shape_.rows * cols_) * dtype_bytes(slope_type(shape_.dtype));
  }

  // GELU and its slope at an argument, as kernels of their own.
  Outcome activation_alone(const std::vector<std::byte>& argument) const {
    const DeviceBytes y(argument), slopes(slope_bytes());
    launch_gelu_and_slope(shape_.gelu_form, {y.data(), shape_.dtype, shape_.rows, cols_},
                          {slopes.data(), slope_type(shape_.dtype), shape_.rows, cols_},
                          {.in = {}, .out = {}, .workspace = {}, .stream = gpu_.stream()});
    SNUG_CUDA(cudaStreamSynchronize(gpu_.stream()));
    return {y.download(), slopes.download(), {}};
  }

  void check_gradient() const {
    const Outcome with_sums = run(ProductGelu::kGradient, true),
                  without = run(ProductGelu::kGradient);
    const bool by_slope = shape_.gelu_form == Activation::kKeptSlope;
    if (!by_slope && may_keep_slopes(shape_)) {
      const Outcome same = run(ProductGelu::kGradient, true, Activation::kKeptSlope,
                               activation_alone(argument_.bytes()).argument);
      EXPECT_EQ(same.result, with_sums.result) << "keeping the slope changes the gradient";
      EXPECT_EQ(same.sums, with_sums.sums);
    }
    EXPECT_EQ(with_sums.result, without.result) << "sums change the result";
    EXPECT_EQ(without.sums, before_.bytes());
    const Doubles got = decoded(with_sums.result, shape_.dtype),
                  sums = decoded(with_sums.sums, DType::kF32);
    // A slope at an argument is rounded before it is used. Such errors have no preferred sign: they
    // add up as squares do.
    Doubles total(size_t(cols_), 0.0), size = total, reach = total, squares = total;
    const bool in_bytes = shape_.dtype == DType::kBF16;
    for (int64_t i = 0; i < shape_.rows * cols_; ++i) {
      ASSERT_FALSE(std::isnan(got[size_t(i)])) << place(i);
      double value = got[size_t(i)];
      if (i % stride() == 0) {
        const double x = argument_.at[size_t(i)], sum = product(i / cols_, i % cols_);
        const double s = slope(shape_.gelu_form, x),
                     rounded = in_bytes ? dtype_error(DType::kSlope8) : rounding() * std::abs(s),
                     slope_error = by_slope ? 0.0 : rounded + kGeluError;
        value = sum * s;
        ASSERT_NEAR(got[size_t(i)], value,
                    std::max(1.13, std::abs(s)) * sum_error() + rounding() * std::abs(value) +
                        1.01 * slope_error * std::abs(sum))
            << place(i);
        reach[size_t(i % cols_)] += std::abs(sum);
        squares[size_t(i % cols_)] += rounded * rounded * sum * sum;
      }
      total[size_t(i % cols_)] += value;
      size[size_t(i % cols_)] += std::abs(value);
    }
    for (int64_t j = 0; j < cols_; ++j) {
      const double error = stride() == 1 ? 2e-5 : rounding();
      const double by_argument =
          by_slope ? 0.0 : 4.0 * std::sqrt(squares[size_t(j)]) + kGeluError * reach[size_t(j)];
      ASSERT_NEAR(sums[size_t(j)], before_.at[size_t(j)] + total[size_t(j)],
                  error * size[size_t(j)] + by_argument + 1e-5)
          << j;
    }
  }

  std::string place(int64_t i) const {
    return "row " + std::to_string(i / cols_) + ", column " + std::to_string(i % cols_);
  }

  const Gpu& gpu_;
  ProductShape shape_;
  bool gradient_;
  int64_t cols_, depth_;
  std::mt19937 random_;
  Values left_, weight_, bias_, argument_, before_;
  DeviceBytes left_bytes_, weight_bytes_, bias_bytes_;
};

// Whether the kernels are there; if not, nothing can be tested.
bool available() {
  return has_gelu_product(
      {.dtype = DType::kF16, .rows = 64, .in = 64, .out = 64, .gelu = ProductGelu::kKeeps}, 0);
}

void check(const Gpu& gpu, const ProductShape& shape) {
  if (leaves_out_case()) return;
  SCOPED_TRACE(testing::Message() << "kind " << int(shape.kind) << ", " << dtype_name(shape.dtype)
                                  << ", " << shape.rows << " x " << shape.in << " x " << shape.out
                                  << ", layout " << int(shape.layout) << ", form "
                                  << int(shape.gelu_form));
  Case(gpu, shape).check();
}

void check_both_kinds(const Gpu& gpu, ProductShape shape) {
  shape.kind = ProductKind::kForward;
  shape.bias = shape.rows % 2 == 1;
  if (is_gelu(shape.gelu_form)) check(gpu, shape);
  shape.kind = ProductKind::kInputGradient;
  shape.bias = false;
  std::swap(shape.in, shape.out);  // a layer's way back is the one through the layer above
  if (is_gelu(shape.gelu_form) || may_keep_slopes(shape)) check(gpu, shape);
}

#define SNUG_NEEDS_HOPPER() \
  SNUG_NEEDS_GPU();         \
  if (!available()) GTEST_SKIP() << "not a Hopper GPU, or not built for one"

TEST(CudaGeluProduct, MatchesFp64) {
  SNUG_NEEDS_HOPPER();
  const Gpu gpu("cuda");
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{1, 64, 128},
                                      {5, 72, 200},
                                      {127, 200, 72},
                                      {128, 64, 128},
                                      {129, 768, 200},
                                      {1000, 72, 264},
                                      {257, 8, 8},
                                      {1, 8, 16},
                                      {127, 200, 80},
                                      {129, 768, 208},
                                      {400, 72, 336}}) {
    for (const DType dtype : kTypes) {
      for (const WeightLayout layout : kLayouts) {
        for (const Activation form : kForms) {
          check_both_kinds(gpu, {.dtype = dtype,
                                 .rows = rows,
                                 .in = in,
                                 .out = out,
                                 .layout = layout,
                                 .gelu_form = form});
        }
      }
    }
  }
}

// Enough tiles for several rounds over all multiprocessors, with depths of few and of many stages.
TEST(CudaGeluProduct, MatchesFp64WhereBlocksTakeManyTiles) {
  SNUG_NEEDS_HOPPER();
  const Gpu gpu("cuda");
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{4001, 72, 3072},
                                      {3007, 136, 3000},
                                      {4002, 136, 3024},
                                      {2050, 768, 3072},
                                      {1999, 1024, 4096}}) {
    for (const WeightLayout layout : kLayouts) {
      check_both_kinds(gpu, {.dtype = rows % 2 ? DType::kF16 : DType::kBF16,
                             .rows = rows,
                             .in = in,
                             .out = out,
                             .layout = layout,
                             .gelu_form = Activation::kGelu});
    }
  }
}

TEST(CudaGeluProduct, DeclinesWhatItCannotDo) {
  SNUG_NEEDS_HOPPER();
  const ProductShape good{
      .dtype = DType::kBF16, .rows = 64, .in = 64, .out = 64, .gelu = ProductGelu::kKeeps};
  EXPECT_TRUE(has_gelu_product(good, 0));
  ProductShape odd = good;
  odd.in = 68;
  EXPECT_FALSE(has_gelu_product(odd, 0));
  odd = good;
  odd.out = 60;
  EXPECT_FALSE(has_gelu_product(odd, 0));
  odd = good;
  odd.dtype = DType::kF32;
  EXPECT_FALSE(has_gelu_product(odd, 0));
  odd = good;
  odd.gelu = ProductGelu::kNone;
  EXPECT_FALSE(has_gelu_product(odd, 0));
  odd.gelu = ProductGelu::kKeepsSlope;
  EXPECT_TRUE(has_gelu_product(odd, 0));
  odd.out = 72;  // no whole groups of bytes
  EXPECT_FALSE(has_gelu_product(odd, 0));
  odd.dtype = DType::kF16;
  EXPECT_TRUE(has_gelu_product(odd, 0));
  odd = good;
  odd.kind = ProductKind::kInputGradient;
  odd.gelu = ProductGelu::kGradient;
  EXPECT_FALSE(has_gelu_product(odd, 0));  // no room for sums
  EXPECT_TRUE(has_gelu_product(odd, kProductWorkspaceBytes));
}

}  // namespace
}  // namespace snug::cuda
