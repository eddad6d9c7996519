#include "ops/mean_pool.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {
namespace {

void divide_by_length(float* row, int64_t n) {
  double squares = 0.0;
  for (int64_t i = 0; i < n; ++i) squares += double(row[i]) * row[i];
  if (squares == 0.0) return;
  const double factor = 1.0 / std::sqrt(squares);
  for (int64_t i = 0; i < n; ++i) row[i] = float(row[i] * factor);
}

}  // namespace

void MeanPool::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == y.cols);
  const int32_t* const starts = call.batch->starts;
  over_ranges(y.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      float* const row = y.f32() + s * y.cols;
      std::fill_n(row, y.cols, 0.0f);
      for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
        const float* const token = x.f32() + t * x.cols;
        for (int64_t i = 0; i < y.cols; ++i) row[i] += token[i];
      }
      const float factor = 1.0f / float(starts[s + 1] - starts[s]);
      for (int64_t i = 0; i < y.cols; ++i) row[i] *= factor;
      if (spec.normalize) divide_by_length(row, y.cols);
    }
  });
}

OpPtr mean_pool(const MeanPoolSpec& spec) { return std::make_shared<MeanPool>(spec); }

}  // namespace snug
