#include "optim/adafactor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adafactor.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "optim/squares-inl.h"

#ifndef SNUG_OPTIM_ADAFACTOR_ARGUMENTS_
#define SNUG_OPTIM_ADAFACTOR_ARGUMENTS_
namespace snug {

// Some rows of a matrix, one after the other.
struct FactoredRows {
  float* w;
  const float* g;
  const float *rows, *columns;  // second moments
  int64_t count, cols;
  double mean_row;  // of all rows of the matrix
  float gradient;   // what the gradient is multiplied with
};

// How an update goes into the weights.
struct Application {
  float keep, rate;
};

inline constexpr size_t kStripColumns = 64;  // whose sums are made at a time

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

double AdafactorRowSquares(const float* row, size_t cols) { return squares_of(row, cols); }

// sums[c] := sum over the rows of g[r, c]^2 for up to kStripColumns columns.
void AdafactorColumnSquares(const float* g, size_t rows, size_t stride, size_t columns,
                            double* HWY_RESTRICT sums) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  std::fill(sums, sums + kStripColumns, 0.0);
  for (size_t r = 0; r < rows; ++r, g += stride) {
    size_t c = 0;
    for (; c + hn::Lanes(d) <= columns; c += hn::Lanes(d)) {
      const auto value = hn::PromoteTo(d, hn::LoadU(df, g + c));
      hn::StoreU(hn::MulAdd(value, value, hn::LoadU(d, sums + c)), d, sums + c);
    }
    for (; c < columns; ++c) sums[c] += double(g[c]) * g[c];
  }
}

// Calls body(row, column, row factor, column factors) for tiles of columns and all rows of each:
// the roots of a tile's columns are taken once.
template <class Body>
HWY_INLINE void over_tiles(const FactoredRows& a, const Body& body) {
  constexpr int64_t kTile = 1024;
  float of_column[kTile];
  for (int64_t begin = 0; begin < a.cols; begin += kTile) {
    const int64_t count = std::min(kTile, a.cols - begin);
    for (int64_t c = 0; c < count; ++c) of_column[c] = 1.0f / std::sqrt(a.columns[begin + c]);
    for (int64_t r = 0; r < a.count; ++r) {
      const float of_row = float(1.0 / std::sqrt(double(a.rows[r]) / a.mean_row)) * a.gradient;
      body(size_t(r * a.cols + begin), size_t(count), of_row, of_column);
    }
  }
}

// Sum of the squared updates.
double AdafactorUpdateSquares(const FactoredRows& rows) {
  const hn::ScalableTag<float> d;
  double sum = 0.0;
  over_tiles(rows, [&](size_t at, size_t count, float of_row, const float* of_column) HWY_ATTR {
    const float* const g = rows.g + at;
    auto squares = hn::Zero(d);
    size_t c = 0;
    for (; c + hn::Lanes(d) <= count; c += hn::Lanes(d)) {
      const auto u =
          hn::Mul(hn::LoadU(d, g + c), hn::Mul(hn::LoadU(d, of_column + c), hn::Set(d, of_row)));
      squares = hn::MulAdd(u, u, squares);
    }
    float rest = hn::GetLane(hn::SumOfLanes(d, squares));
    for (; c < count; ++c) {
      const float u = g[c] * (of_column[c] * of_row);
      rest += u * u;
    }
    sum += double(rest);
  });
  return sum;
}

void AdafactorApply(const FactoredRows& rows, const Application& application) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  over_tiles(rows, [&](size_t at, size_t count, float of_row, const float* of_column) HWY_ATTR {
    const float* const g = rows.g + at;
    float* const w = rows.w + at;
    const auto apply = [&](auto tag, size_t c) HWY_ATTR {
      const auto u = hn::Mul(hn::LoadU(tag, g + c),
                             hn::Mul(hn::LoadU(tag, of_column + c), hn::Set(tag, of_row)));
      const auto kept = hn::Mul(hn::LoadU(tag, w + c), hn::Set(tag, application.keep));
      hn::StoreU(hn::NegMulAdd(hn::Set(tag, application.rate), u, kept), tag, w + c);
    };
    size_t c = 0;
    for (; c + hn::Lanes(d) <= count; c += hn::Lanes(d)) apply(d, c);
    for (; c < count; ++c) apply(one, c);
  });
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>

#include "core/error.h"

namespace snug {
namespace {

// Sums over a whole parameter are made in this many pieces, whatever the number of threads.
constexpr int64_t kPieces = 256;
constexpr int64_t kWorthThreads = 16384;  // elements

template <class Body>
double sum_over_pieces(int64_t count, bool threads, const Body& body) {
  std::array<double, kPieces> sums = {};
#pragma omp parallel for schedule(static) if (threads)
  for (int64_t p = 0; p < kPieces; ++p) {
    const int64_t begin = count * p / kPieces, end = count * (p + 1) / kPieces;
    if (begin < end) sums[size_t(p)] = body(begin, end);
  }
  double total = 0.0;
  for (double sum : sums) total += sum;
  return total;
}

float clipped_rate(const AdafactorFactors& factors, double squares, size_t size) {
  const double root_mean_square = std::sqrt(squares / double(size));
  return float(factors.learning_rate / std::max(1.0, root_mean_square / kAdafactorClip));
}

}  // namespace

HWY_EXPORT(AdafactorRowSquares);
HWY_EXPORT(AdafactorColumnSquares);
HWY_EXPORT(AdafactorUpdateSquares);
HWY_EXPORT(AdafactorApply);

AdafactorFactors adafactor_factors(const OptimizerStep& step) {
  const double new_v = std::pow(double(step.step), -0.8);
  return {.old_v = 1.0 - new_v,
          .new_v = new_v,
          .keep = float(1.0 - step.learning_rate * step.weight_decay),
          .learning_rate = step.learning_rate,
          .gradient = float(step.gradient_scale)};
}

void adafactor_matrix(std::span<float> w, std::span<const float> g, std::span<float> rows,
                      std::span<float> columns, const OptimizerStep& step) {
  const auto row_count = int64_t(rows.size()), cols = int64_t(columns.size());
  SNUG_CHECK(g.size() == w.size() && w.size() == rows.size() * columns.size() && step.step >= 1);
  const AdafactorFactors factors = adafactor_factors(step);
  const double scale = double(factors.gradient) * double(factors.gradient);
  const bool threads = row_count * cols > kWorthThreads;
  const auto mix = [&](float& v, double mean) {
    v = float(factors.old_v * double(v) + factors.new_v * (mean + kAdafactorSmallest));
  };
#pragma omp parallel for schedule(static) if (threads)
  for (int64_t r = 0; r < row_count; ++r) {
    mix(rows[size_t(r)],
        scale * HWY_DYNAMIC_DISPATCH(AdafactorRowSquares)(g.data() + r * cols, size_t(cols)) /
            double(cols));
  }
#pragma omp parallel for schedule(static) if (threads)
  for (int64_t begin = 0; begin < cols; begin += int64_t(kStripColumns)) {
    double sums[kStripColumns];
    const auto count = size_t(std::min(int64_t(kStripColumns), cols - begin));
    HWY_DYNAMIC_DISPATCH(AdafactorColumnSquares)
    (g.data() + begin, size_t(row_count), size_t(cols), count, sums);
    for (size_t c = 0; c < count; ++c) {
      mix(columns[size_t(begin) + c], scale * sums[c] / double(row_count));
    }
  }
  double mean_row = 0.0;
  for (float row : rows) mean_row += double(row) / double(row_count);
  const auto piece = [&](int64_t begin, int64_t end) {
    return FactoredRows{w.data() + begin * cols,
                        g.data() + begin * cols,
                        rows.data() + begin,
                        columns.data(),
                        end - begin,
                        cols,
                        mean_row,
                        factors.gradient};
  };
  const double squares = sum_over_pieces(row_count, threads, [&](int64_t begin, int64_t end) {
    return HWY_DYNAMIC_DISPATCH(AdafactorUpdateSquares)(piece(begin, end));
  });
  const Application application = {factors.keep, clipped_rate(factors, squares, w.size())};
  sum_over_pieces(row_count, threads, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdafactorApply)(piece(begin, end), application);
    return 0.0;
  });
}

// Biases and norms: too small to be worth vectors.
void adafactor_vector(std::span<float> w, std::span<const float> g, std::span<float> v,
                      const OptimizerStep& step) {
  SNUG_CHECK(g.size() == w.size() && v.size() == w.size() && step.step >= 1);
  const AdafactorFactors factors = adafactor_factors(step);
  const auto update = [&](size_t i) { return factors.gradient * g[i] / std::sqrt(v[i]); };
  double squares = 0.0;
  for (size_t i = 0; i < w.size(); ++i) {
    const double scaled = double(factors.gradient) * double(g[i]);
    v[i] = float(factors.old_v * double(v[i]) +
                 factors.new_v * (scaled * scaled + kAdafactorSmallest));
    squares += double(update(i)) * update(i);
  }
  const float rate = clipped_rate(factors, squares, w.size());
  for (size_t i = 0; i < w.size(); ++i) w[i] = w[i] * factors.keep - rate * update(i);
}

}  // namespace snug
#endif  // HWY_ONCE
