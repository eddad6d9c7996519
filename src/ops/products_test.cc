#include "ops/products.h"

#include <cstdio>
#include <cstdlib>

#include "core/process_memory.h"
#include "ops/op_test_util.h"

namespace snug {
namespace {

struct Products {
  ProductDims dims;
  Doubles x, w, dy;

  Products(const ProductDims& d, uint64_t seed) : dims(d) {
    const Batch batch;
    OpHarness h(batch, seed);
    x = h.doubles(h.random(d.rows, d.in)), w = h.doubles(h.random(d.out, d.in)),
    dy = h.doubles(h.random(d.rows, d.out));
  }
};

std::vector<float> to_floats(const Doubles& values) { return {values.begin(), values.end()}; }
Doubles to_doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

TEST(Products, MatchPlainLoops) {
  for (const ProductDims& d : {ProductDims{1, 1, 1}, {3, 5, 7}, {17, 31, 13}, {65, 33, 129}}) {
    const Products p(d, 5);
    const size_t rows = size_t(d.rows), in = size_t(d.in), out = size_t(d.out);
    Doubles y(rows * out), dx(rows * in), dw(out * in);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t o = 0; o < out; ++o) {
        for (size_t i = 0; i < in; ++i) {
          y[r * out + o] += p.x[r * in + i] * p.w[o * in + i];
          dx[r * in + i] += p.dy[r * out + o] * p.w[o * in + i];
          dw[o * in + i] += p.dy[r * out + o] * p.x[r * in + i];
        }
      }
    }
    // Sums of products: some eps of the product of the norms, plus that of the 1.0 they are added
    // to.
    const double y_error =
        8.0 * kEps * (1.0 + largest_row_norm(p.x, in) * largest_row_norm(p.w, in));
    const double dx_error =
        8.0 * kEps * (1.0 + largest_row_norm(p.dy, out) * largest_column_norm(p.w, in));
    const double dw_error =
        8.0 * kEps * (1.0 + largest_column_norm(p.dy, out) * largest_column_norm(p.x, in));
    const auto x = to_floats(p.x), w = to_floats(p.w), dy = to_floats(p.dy);
    for (double before : {0.0, 1.0}) {
      const Write write = before == 0.0 ? Write::kOverwrite : Write::kAdd;
      const float start = before == 0.0 ? NAN : 1.0f;  // overwriting must not read
      std::vector<float> got_y(y.size(), start), got_dx(dx.size(), start),
          got_dw(dw.size(), float(before));
      product_nt(d, x.data(), w.data(), got_y.data(), write);
      product_nn(d, dy.data(), w.data(), got_dx.data(), write);
      product_tn(d, dy.data(), x.data(), got_dw.data());
      const auto plus = [&](Doubles values) {
        for (double& v : values) v += before;
        return values;
      };
      EXPECT_TRUE(close("y", to_doubles(got_y), plus(y), y_error, 5));
      EXPECT_TRUE(close("dx", to_doubles(got_dx), plus(dx), dx_error, 5));
      EXPECT_TRUE(close("dw", to_doubles(got_dw), plus(dw), dw_error, 5));
    }
  }
}

#ifndef __SANITIZE_ADDRESS__  // whose shadow grows with what is touched

// Runs in a process of its own; ends it with 0 if products of all kinds and sizes no longer add to
// its memory. The other side of a layer is at most `side`.
[[noreturn]] void measure_growth(int threads, int64_t largest_dim, int64_t rows, int64_t side) {
  omp_set_num_threads(threads);
  const size_t size =
      size_t(std::max(largest_dim, rows) * std::max(side, std::min(largest_dim, rows)));
  std::vector<float> x(size, 1.0f), w(size, 1.0f), y(size, 1.0f);
  warm_up_products(largest_dim, rows);
  const int64_t before = int64_t(resident_bytes());
  std::mt19937_64 random(7);
  const auto up_to = [&](int64_t most) {
    return random() % 4 ? 1 + int64_t(random() % uint64_t(most)) : most;
  };
  for (int i = 0; i < 30; ++i) {
    ProductDims dims = {up_to(rows), up_to(side), up_to(largest_dim)};
    if (random() % 2) std::swap(dims.in, dims.out);
    product_nt(dims, x.data(), w.data(), y.data(), Write::kOverwrite);
    product_nn(dims, x.data(), w.data(), y.data(), Write::kAdd);
    product_tn(dims, x.data(), w.data(), y.data());
  }
  const int64_t growth = int64_t(resident_bytes()) - before;
  std::fprintf(stderr, "grew by %lld KiB\n", static_cast<long long>(growth / 1024));
  std::_Exit(growth < 256 * 1024 ? 0 : 1);  // some pages of code
}

// Kernels of OpenBLAS that this processor can run besides its own; they pack blocks of other sizes.
std::vector<const char*> other_kernels() {
  std::vector<const char*> names;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) names.push_back("Haswell");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    names.push_back("SkylakeX");
  }
#endif
  return names;
}

TEST(ProductsDeathTest, LeaveMemoryAloneAfterWarmUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process, where no product has run
  const auto check = [](int threads) {
    SCOPED_TRACE(threads);
    EXPECT_EXIT(measure_growth(threads, 2048, 512, 2048), testing::ExitedWithCode(0), "grew by");
    EXPECT_EXIT(measure_growth(threads, 512, 64, 512), testing::ExitedWithCode(0), "grew by");
    EXPECT_EXIT(measure_growth(threads, 512, 3000, 512), testing::ExitedWithCode(0), "grew by");
    if (threads != 2) return;
    // A vocabulary.
    EXPECT_EXIT(measure_growth(threads, 50257, 1024, 32), testing::ExitedWithCode(0), "grew by");
    // A large step.
    EXPECT_EXIT(measure_growth(threads, 256, 90000, 64), testing::ExitedWithCode(0), "grew by");
  };
  for (int threads : {1, 2, 3}) check(threads);
  for (const char* kernels : other_kernels()) {
    SCOPED_TRACE(kernels);
    setenv("OPENBLAS_CORETYPE", kernels, 1);
    check(2);
    unsetenv("OPENBLAS_CORETYPE");
  }
}

#endif

}  // namespace
}  // namespace snug
