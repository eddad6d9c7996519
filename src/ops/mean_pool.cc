#include "ops/mean_pool.h"

#include <algorithm>

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {

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
    }
  });
}

OpPtr mean_pool() { return std::make_shared<MeanPool>(); }

}  // namespace snug
