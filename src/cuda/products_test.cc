// Products of every kind, type and odd size against fp64.
#include "cuda/products.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "core/json.h"
#include "core/shared_lines.h"
#include "cuda/cuda_test_util.h"
#include "cuda/gpu.h"
#include "cuda/timing_numbers.h"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

// Rows may lie further apart than they are long; what is between them belongs to nobody.
struct Matrix {
  Doubles values;  // as the device sees them: rounded to the type
  int64_t cols = 0, stride = 0;
  double at(int64_t r, int64_t c) const { return values[size_t(r * stride + c)]; }
};

double eps_of(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-7 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-23;
}

double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

double gelu_tanh_slope(double x) {
  const double c = std::sqrt(2.0 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

void check(Products& products, const Gpu& gpu, const ProductShape& shape) {
  if (leaves_out_case()) return;
  SCOPED_TRACE(testing::Message() << "kind " << int(shape.kind) << ", " << dtype_name(shape.dtype)
                                  << ", " << shape.rows << " x " << shape.in << " x " << shape.out
                                  << ", layout " << int(shape.layout) << ", stride "
                                  << shape.out_stride << ", gelu " << int(shape.gelu));
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const auto make = [&](int64_t rows, int64_t cols, DType dtype, int64_t stride = 0) {
    if (stride == 0) stride = cols;
    Doubles values(size_t(rows * stride));
    for (double& v : values) v = normal(random);
    return Matrix{decoded(encoded(values, dtype), dtype), cols, stride};
  };
  const bool forward = shape.kind == ProductKind::kForward,
             weights = shape.kind == ProductKind::kWeightGradient;
  const bool in_out = shape.layout == WeightLayout::kInOut;
  const int64_t w_rows = in_out ? shape.in : shape.out, w_cols = in_out ? shape.out : shape.in;
  const auto make_y = [&] { return make(shape.rows, shape.out, shape.dtype, shape.out_stride); };
  const auto make_x = [&] { return make(shape.rows, shape.in, shape.dtype); };
  const Matrix left = forward ? make_x() : make_y();
  const Matrix right = weights ? make_x() : make(w_rows, w_cols, shape.dtype);
  const Matrix bias = make(1, shape.out, shape.dtype);
  const DType result_type = weights && !shape.rounds ? DType::kF32 : shape.dtype;
  const Matrix before = forward ? make_y() : weights ? make(w_rows, w_cols, result_type) : make_x();
  const int64_t rows = weights ? w_rows : shape.rows, cols = before.cols;
  const int64_t depth = forward ? shape.in : weights ? shape.rows : shape.out;

  const DeviceBytes l(encoded(left.values, shape.dtype)), r(encoded(right.values, shape.dtype)),
      b(encoded(bias.values, shape.dtype));
  const DeviceBytes warm(encoded(before.values, result_type)),
      y(encoded(before.values, result_type));
  const bool gelu_gradient = shape.gelu == ProductGelu::kGradient;
  const Matrix given_argument = gelu_gradient ? make_x() : Matrix();
  const DeviceBytes argument = gelu_gradient
                                   ? DeviceBytes(encoded(given_argument.values, shape.dtype))
                                   : DeviceBytes(before.values.size() * dtype_bytes(result_type));
  const DeviceBytes workspace(kProductWorkspaceBytes);
  const std::span<std::byte> scratch(workspace.data<std::byte>(), kProductWorkspaceBytes);
  ProductTensors tensors{l.data(), r.data(), shape.bias ? b.data() : nullptr, warm.data()};
  if (gelu_gradient || shape.gelu == ProductGelu::kKeeps) tensors.argument = argument.data();
  products.run(shape, tensors, scratch, gpu.stream());  // times candidates, which adds up
  tensors.result = y.data();
  products.run(shape, tensors, scratch, gpu.stream());
  SNUG_CUDA(cudaStreamSynchronize(gpu.stream()));
  EXPECT_TRUE(y.guards_intact() && argument.guards_intact());
  const Doubles got = decoded(y.download(), result_type),
                got_argument = decoded(argument.download(), result_type);

  // The weight at (o, i), whatever its layout.
  const auto w_at = [&](int64_t o, int64_t i) { return in_out ? right.at(i, o) : right.at(o, i); };
  // fp32 sums of `depth` products of size about one, then one rounding of the result.
  const double sum_error = 8 * 0x1p-23 * double(depth) + 1e-6;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < before.stride; ++j) {
      const double result = got[size_t(i * before.stride + j)];
      if (j >= cols) {
        ASSERT_EQ(result, before.at(i, j)) << "between rows: " << i << ", " << j;
        continue;
      }
      double want = (weights && !shape.overwrite) || shape.accumulate ? before.at(i, j) : 0;
      if (shape.bias) want += bias.at(0, j);
      for (int64_t k = 0; k < depth; ++k) {
        if (forward) {
          want += left.at(i, k) * w_at(j, k);
        } else if (weights) {
          want += in_out ? left.at(k, j) * right.at(k, i) : left.at(k, i) * right.at(k, j);
        } else {
          want += left.at(i, k) * w_at(k, j);
        }
      }
      // Where it adds to what is there, or a bias, the library may round the product to the
      // result's type first.
      double roundings = std::abs(want);
      if (shape.accumulate) roundings += std::abs(want - before.at(i, j));
      if (shape.bias) roundings += std::abs(want - bias.at(0, j));
      const double tolerance = sum_error + 0.51 * eps_of(result_type) * roundings;
      if (shape.gelu == ProductGelu::kKeeps) {
        ASSERT_NEAR(got_argument[size_t(i * cols + j)], want, tolerance) << i << ", " << j;
      }
      // The library's tanh may be the hardware's, which is good to 2^-11; GELU halves that, and its
      // slope is below 1.13.
      if (gelu_gradient) {
        // The product is rounded to the result's type before the slope is applied.
        const double x = given_argument.at(i, j),
                     error =
                         (5e-4 * (1.0 + std::abs(x)) + 0.51 * eps_of(result_type)) * std::abs(want);
        ASSERT_NEAR(result, want * gelu_tanh_slope(x), 1.13 * tolerance + error) << i << ", " << j;
      } else if (shape.gelu != ProductGelu::kNone) {
        ASSERT_NEAR(result, gelu_tanh(want), tolerance + 5e-4 * std::abs(want)) << i << ", " << j;
      } else {
        ASSERT_NEAR(result, want, tolerance) << i << ", " << j;
      }
    }
  }
}

constexpr std::array<int64_t, 3> kSizes[] = {
    {128, 64, 192}, {37, 48, 3}, {1, 17, 5}, {130, 7, 2}, {256, 96, 41}};
constexpr WeightLayout kLayouts[] = {WeightLayout::kOutIn, WeightLayout::kInOut};

TEST(CudaProducts, MatchFp64) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  TestProducts products(gpu);
  for (const DType dtype : types_here()) {
    for (const auto& [rows, in, out] : kSizes) {
      for (const WeightLayout layout : kLayouts) {
        check(products, gpu, {ProductKind::kForward, dtype, rows, in, out, true, false, layout});
        check(products, gpu, {ProductKind::kForward, dtype, rows, in, out, false, false, layout});
        check(products, gpu,
              {ProductKind::kInputGradient, dtype, rows, in, out, false, false, layout});
        check(products, gpu,
              {ProductKind::kInputGradient, dtype, rows, in, out, false, true, layout});
        ProductShape weights{
            ProductKind::kWeightGradient, dtype, rows, in, out, false, false, layout};
        check(products, gpu, weights);
        weights.overwrite = true;
        check(products, gpu, weights);
        weights.rounds = true;
        check(products, gpu, weights);
      }
    }
  }
}

TEST(CudaProducts, TimingNumbersAreSmallInEveryType) {
  SNUG_NEEDS_GPU();
  const size_t bytes = 4 * 100'003;
  DeviceBytes memory(bytes + 4);
  launch_timing_numbers(memory.data(), bytes, nullptr);
  std::vector<std::byte> contents = memory.download();
  EXPECT_TRUE(std::ranges::all_of(std::span(contents).last(4),
                                  [](std::byte b) { return b == std::byte(0xff); }));
  contents.resize(bytes);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Doubles values = decoded(contents, dtype);
    double sum = 0.0, sizes = 0.0;
    for (const double value : values) {
      ASSERT_GE(std::abs(value), 1.0 / 128.0);
      ASSERT_LT(std::abs(value), 1.5);
      sum += value, sizes += std::abs(value);
    }
    EXPECT_LT(std::abs(sum), 0.02 * sizes);  // as many of either sign
  }
}

// Large enough for its candidates to be run on for longer.
TEST(CudaProducts, MatchFp64WhenChosenInLongRuns) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  TestProducts products(gpu);
  const DType dtype = half_here();
  const ProductShape shape{ProductKind::kForward, dtype, 16384, 768, 1024};
  const DeviceBytes x(size_t(shape.rows * shape.in) * 2), w(size_t(shape.in * shape.out) * 2),
      y(size_t(shape.rows * shape.out) * 2);
  const DeviceBytes workspace(kProductWorkspaceBytes);
  const ProductTensors tensors{x.data(), w.data(), nullptr, y.data()};
  // As timing fills them, which does not happen where the choice is known.
  for (const DeviceBytes* factor : {&x, &w}) {
    launch_timing_numbers(factor->data(), factor->size(), gpu.stream());
  }
  products.set_timing({.free_factors = true, .long_runs = true});
  products.run(shape, tensors, {workspace.data<std::byte>(), workspace.size()}, gpu.stream());
  SNUG_CUDA(cudaStreamSynchronize(gpu.stream()));
  EXPECT_TRUE(x.guards_intact() && w.guards_intact() && y.guards_intact());
  const Doubles left = decoded(x.download(), dtype), right = decoded(w.download(), dtype),
                got = decoded(y.download(), dtype);
  std::mt19937 random(5);
  for (int n = 0; n < 200; ++n) {
    const size_t in = size_t(shape.in), i = random() % size_t(shape.rows),
                 j = random() % size_t(shape.out);
    double want = 0, sizes = 0;
    for (size_t k = 0; k < in; ++k) {
      const double product = left[i * in + k] * right[j * in + k];
      want += product, sizes += std::abs(product);
    }
    ASSERT_NE(want, 0.0);
    ASSERT_NEAR(got[i * size_t(shape.out) + j], want,
                0.51 * eps_of(dtype) * std::abs(want) + 1e-6 * sizes)
        << i << ", " << j;
  }
}

// As a language model's logits lie: an odd vocabulary in rows of whole chunks.
TEST(CudaProducts, MatchFp64WithRowsApart) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  TestProducts products(gpu);
  for (const DType dtype : types_here()) {
    for (const auto& [rows, in, out] :
         {std::array<int64_t, 3>{33, 64, 97}, {128, 100, 1000}, {5, 7, 130}}) {
      const int64_t stride = (out + 63) / 64 * 64;
      for (const ProductKind kind :
           {ProductKind::kForward, ProductKind::kInputGradient, ProductKind::kWeightGradient}) {
        for (const WeightLayout layout : kLayouts) {
          check(products, gpu,
                {kind, dtype, rows, in, out, kind == ProductKind::kForward, false, layout, stride});
        }
      }
    }
  }
}

TEST(CudaProducts, MatchFp64WithGelu) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  TestProducts products(gpu);
  for (const DType dtype : types_here()) {
    for (const auto& [rows, in, out] : {std::array<int64_t, 3>{128, 64, 192}, {200, 96, 512}}) {
      for (const WeightLayout layout : kLayouts) {
        for (const ProductGelu gelu : {ProductGelu::kForgets, ProductGelu::kKeeps}) {
          const ProductShape shape{
              ProductKind::kForward, dtype, rows, in, out, true, false, layout, 0, gelu};
          if (may_fuse_gelu(shape)) check(products, gpu, shape);
        }
        const ProductShape shape{.kind = ProductKind::kInputGradient,
                                 .dtype = dtype,
                                 .rows = rows,
                                 .in = in,
                                 .out = out,
                                 .layout = layout,
                                 .gelu = ProductGelu::kGradient};
        if (may_fuse_gelu(shape)) check(products, gpu, shape);
      }
    }
  }
}

TEST(CudaProducts, TheLibraryKnowsNoSlopes) {
  ProductShape shape{
      .dtype = DType::kBF16, .rows = 64, .in = 64, .out = 64, .gelu = ProductGelu::kKeeps};
  EXPECT_TRUE(may_fuse_gelu(shape));
  shape.gelu = ProductGelu::kKeepsSlope;
  EXPECT_FALSE(may_fuse_gelu(shape));
  shape = {.kind = ProductKind::kInputGradient,
           .dtype = DType::kBF16,
           .rows = 64,
           .in = 64,
           .out = 64,
           .gelu = ProductGelu::kGradient};
  EXPECT_TRUE(may_fuse_gelu(shape));
  shape.gelu_form = Activation::kKeptSlope;
  EXPECT_FALSE(may_fuse_gelu(shape));
}

// Whatever was chosen, the second step is left out exactly where the first did it.
TEST(CudaProducts, GeluIsAppliedOnce) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  const std::filesystem::path cache = testing::TempDir() + "snug-products-test";
  std::filesystem::remove_all(cache);
  const ProductShape shape{
      .dtype = DType::kF16, .rows = 64, .in = 64, .out = 64, .gelu = ProductGelu::kKeeps};
  const DeviceBytes x(encoded(Doubles(64 * 64, 0.25), DType::kF16)), y(size_t{64 * 64 * 2}),
      pre(size_t{64 * 64 * 2});
  const DeviceBytes workspace(kProductWorkspaceBytes);
  const std::span<std::byte> scratch(workspace.data<std::byte>(), kProductWorkspaceBytes);
  const std::vector<std::byte> activated = encoded(Doubles(64 * 64, gelu_tanh(4.0)), DType::kF16);
  bool second_step = false, apart = false;
  for (int run = 0; run < 2; ++run) {
    Products products(gpu, cache, false);
    second_step = false;
    const BehindProduct behind{.without_gelu = [&] {
      second_step = true;
      SNUG_CUDA(cudaMemcpyAsync(y.data(), activated.data(), activated.size(),
                                cudaMemcpyHostToDevice, gpu.stream()));
    }};
    const ProductTensors tensors{
        .left = x.data(), .right = x.data(), .result = y.data(), .argument = pre.data()};
    products.run_with_gelu(shape, tensors, scratch, gpu.stream(), behind);
    if (run == 1) {
      EXPECT_EQ(second_step, apart);  // remembered, not measured again
    }
    second_step = false;
    products.run_with_gelu(shape, tensors, scratch, gpu.stream(), behind);
    apart = second_step;
    SNUG_CUDA(cudaStreamSynchronize(gpu.stream()));
    EXPECT_NEAR(decoded(y.download(), DType::kF16)[5], gelu_tanh(4.0), 4e-3);
    EXPECT_NEAR(decoded(pre.download(), DType::kF16)[5], 4.0, 1e-6);
  }
}

// A run of its own, as far as choices go.
class Chooser {
 public:
  explicit Chooser(const std::filesystem::path& cache) : products_(gpu_, cache, false) {}

  void choose(int64_t rows) {
    products_.run({.dtype = DType::kF16, .rows = rows, .in = 64, .out = 128},
                  {.left = x_.data(), .right = x_.data(), .result = y_.data()},
                  {workspace_.data<std::byte>(), workspace_.size()}, gpu_.stream());
    SNUG_CUDA(cudaStreamSynchronize(gpu_.stream()));
  }

 private:
  const Gpu gpu_{"cuda"};
  Products products_;
  const DeviceBytes x_{size_t{192 * 64 * 2}}, y_{size_t{192 * 128 * 2}},
      workspace_{kProductWorkspaceBytes};
};

// A folder for choices, of this process alone.
class ChoicesFolder {
 public:
  ChoicesFolder() { std::filesystem::remove_all(path); }
  ~ChoicesFolder() { std::filesystem::remove_all(path); }
  ChoicesFolder(const ChoicesFolder&) = delete;

  std::filesystem::path file() const {
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1);
    return std::filesystem::directory_iterator(path)->path();
  }
  std::vector<std::string> lines() const { return SharedLines(file()).fresh(); }

  const std::filesystem::path path =
      testing::TempDir() + "snug-choices-test-" + std::to_string(::getpid());
};

// Two runs that start at the same time: what one has chosen counts for the other.
TEST(CudaProducts, ChoicesOfTwoRunsAreKept) {
  SNUG_NEEDS_GPU();
  const ChoicesFolder folder;
  Chooser first(folder.path), second(folder.path);
  first.choose(64);
  const std::vector<std::string> before = folder.lines();
  ASSERT_EQ(before.size(), 1u);
  second.choose(64);
  EXPECT_EQ(folder.lines(), before);
  second.choose(128);
  const std::vector<std::string> after = folder.lines();
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(after[0], before[0]);
}

TEST(CudaProducts, RunsAtOnceChooseOnce) {
  SNUG_NEEDS_GPU();
  if (watched_cases()) return;  // a product takes longer there than others wait for
  const ChoicesFolder folder;
  Chooser first(folder.path), second(folder.path);
  const auto choose_all = [](Chooser& chooser) {
    for (const int64_t rows : {64, 128, 192}) EXPECT_NO_THROW(chooser.choose(rows));
  };
  std::thread other([&] { choose_all(second); });
  choose_all(first);
  other.join();
  std::multiset<int64_t> chosen;
  for (const std::string& line : folder.lines()) {
    chosen.insert(Json::parse(line).at("product").at(2).get<int64_t>());  // rows
  }
  EXPECT_EQ(chosen, (std::multiset<int64_t>{64, 128, 192}));
}

TEST(CudaProducts, LinesThatAreNoChoicesAreIgnored) {
  SNUG_NEEDS_GPU();
  const ChoicesFolder folder;
  Chooser(folder.path).choose(64);
  const std::string line = folder.lines().at(0);
  std::ofstream(folder.file()) << "\n[\n[]\n{}\n7\n"
                               << line.substr(0, line.size() / 2) << "\n"
                               << line << "\n[0";
  const std::vector<std::string> before = folder.lines();
  ASSERT_EQ(before.size(), 7u);
  Chooser(folder.path).choose(64);
  EXPECT_EQ(folder.lines(), before);
}

// One operator on the CPU, and whatever was measured to be faster on the device. Sizes that the
// library's epilogue takes, and some it does not; a bucket that is just full and one with padding,
// whose gradients are zero.
TEST(CudaLinearInputGradient, GoesOnThroughTheEpilogueBelow) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  TestProducts products(gpu);
  uint64_t seed = 1;
  for (const DType dtype : types_here()) {
    for (const auto& [in, out] :
         {std::pair<int64_t, int64_t>{256, 64}, {1024, 128}, {100, 48}, {13, 7}}) {
      for (const WeightLayout layout : kLayouts) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", " << in << " to " << out
                                        << ", layout " << int(layout));
        const PackedBatch packed({150, 1, 100, 49, 1}, seed);
        Dims bucket = packed.batch.dims;
        if (seed % 3 != 0) bucket.tokens += 83;
        CudaCase c(packed, bucket, seed);
        c.products = &products;
        const auto tokens = [&](int64_t cols) { return TensorDesc{dtype, Rows::kTokens, 1, cols}; };
        const bool out_in = layout == WeightLayout::kOutIn;
        const TensorDesc weight = {dtype, Rows::kFixed, out_in ? out : in, out_in ? in : out};
        const ValueId dy = c.random(tokens(out), 1.0, 0.0, 0.0),
                      w = c.random(weight, 1.0 / std::sqrt(double(out)));
        const ValueId db = seed % 4 ? c.target({DType::kF32, Rows::kFixed, 1, in}, true) : kNoValue;
        constexpr Activation kKept[] = {Activation::kGelu, Activation::kGeluTanh,
                                        Activation::kKeptSlope};
        const LinearInputGradient op(false, layout, kKept[seed / 2 % 3]);
        TensorDesc kept = tokens(in);
        if (op.activation == Activation::kKeptSlope) kept.dtype = slope_type(dtype);
        if (kept.dtype == DType::kSlope8 && in % SlopeBytes::kGroup != 0) {
          ++seed;
          continue;
        }
        const std::vector<ValueId> inputs = {dy, w, c.random(kept, 2.0)},
                                   outputs = {c.output(tokens(in)), db};
        c.check(op, inputs, outputs, 4.0, dtype_error(dtype));
        ++seed;
      }
    }
  }
}

}  // namespace
}  // namespace snug::cuda
