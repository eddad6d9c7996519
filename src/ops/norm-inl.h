// Layer norm of one row, both directions, shared by residual_norm and embedding. Rows are given as
// functions of the column, since embeddings add theirs up on the fly. Statistics are two passes in
// fp32: a one-pass variance cancels. Included once per target.
#if defined(SNUG_OPS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_OPS_NORM_INL_H_
#undef SNUG_OPS_NORM_INL_H_
#else
#define SNUG_OPS_NORM_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>

#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

struct NormStats {
  float mean, rstd;  // rstd = 1 / sqrt(variance + eps)
};

// row(i, access) is the vector of the row at column i.
template <class Row>
HWY_INLINE NormStats norm_stats(size_t n, float eps, const Row& row) {
  const FloatTag d;
  FloatVector total = hn::Zero(d);
  over_row(n, [&](size_t i, auto access) HWY_ATTR { total = hn::Add(total, row(i, access)); });
  const float mean = sum_of_lanes(total) / float(n);
  const FloatVector center = hn::Set(d, mean);
  FloatVector squares = hn::Zero(d);
  over_row(n, [&](size_t i, auto access) HWY_ATTR {
    const FloatVector off = access.present(d, hn::Sub(row(i, access), center));
    squares = hn::MulAdd(off, off, squares);
  });
  return {mean, 1.0f / std::sqrt(sum_of_lanes(squares) / float(n) + eps)};
}

HWY_INLINE FloatVector normalized(FloatVector v, const NormStats& stats) {
  const FloatTag d;
  return hn::Mul(hn::Sub(v, hn::Set(d, stats.mean)), hn::Set(d, stats.rstd));
}

// The gradient of a row from dy: rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * gamma.
class NormRowGradient {
 public:
  template <class Row>
  HWY_INLINE NormRowGradient(size_t n, const NormStats& stats, const float* dy, const float* gamma,
                             const Row& row)
      : stats_(stats) {
    const FloatTag d;
    FloatVector g_total = hn::Zero(d), gx_total = hn::Zero(d);
    over_row(n, [&](size_t i, auto access) HWY_ATTR {
      const FloatVector g = hn::Mul(access.load(d, dy + i), access.load(d, gamma + i));
      g_total = hn::Add(g_total, g);
      gx_total = hn::MulAdd(g, normalized(row(i, access), stats), gx_total);
    });
    g_mean_ = sum_of_lanes(g_total) / float(n);
    gx_mean_ = sum_of_lanes(gx_total) / float(n);
  }

  HWY_INLINE FloatVector at(FloatVector dy, FloatVector gamma, FloatVector x) const {
    const FloatTag d;
    // The product is rounded as it was for the mean: a fused one would leave a remainder, which
    // rstd may enlarge.
    const FloatVector centered = hn::Sub(hn::Mul(dy, gamma), hn::Set(d, g_mean_));
    const FloatVector xhat = normalized(x, stats_);
    return hn::Mul(hn::Set(d, stats_.rstd), hn::NegMulAdd(xhat, hn::Set(d, gx_mean_), centered));
  }

 private:
  NormStats stats_;
  float g_mean_, gx_mean_;
};

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
