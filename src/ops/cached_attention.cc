#include "ops/cached_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cached_attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "ops/math-inl.h"
#include "ops/simd-inl.h"

#ifndef SNUG_OPS_CACHED_ATTENTION_QUERY_
#define SNUG_OPS_CACHED_ATTENTION_QUERY_
namespace snug {

struct CachedQuery {
  const float* q;
  const float *k, *v;  // of the text's first key
  size_t stride;       // from one key to the next
  size_t keys, head_dim;
  float* scores;  // [keys], scratch
  float* o;
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

void AttendToCache(const CachedQuery& a) {
  const FloatTag d;
  const float scale = 1.0f / std::sqrt(float(a.head_dim));
  float max = -std::numeric_limits<float>::infinity();
  for (size_t key = 0; key < a.keys; ++key) {
    FloatVector sum = hn::Zero(d);
    over_row(a.head_dim, [&](size_t i, auto access) HWY_ATTR {
      sum = hn::MulAdd(access.load(d, a.q + i), access.load(d, a.k + key * a.stride + i), sum);
    });
    a.scores[key] = sum_of_lanes(sum) * scale;
    max = std::max(max, a.scores[key]);
  }
  FloatVector total = hn::Zero(d);
  over_row(a.keys, [&](size_t i, auto access) HWY_ATTR {
    const FloatVector p = vector_exp(hn::Sub(access.load(d, a.scores + i), hn::Set(d, max)));
    access.store(p, d, a.scores + i);
    total = hn::Add(total, access.present(d, p));
  });
  const FloatVector inverse = hn::Set(d, 1.0f / sum_of_lanes(total));
  over_row(a.head_dim, [&](size_t i, auto access) HWY_ATTR {
    FloatVector sum = hn::Zero(d);
    for (size_t key = 0; key < a.keys; ++key) {
      sum = hn::MulAdd(hn::Set(d, a.scores[key]), access.load(d, a.v + key * a.stride + i), sum);
    }
    access.store(hn::Mul(sum, inverse), d, a.o + i);
  });
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <omp.h>

#include <algorithm>

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {

HWY_EXPORT(AttendToCache);

size_t CachedAttention::workspace_bytes(const Sizing& sizing) const {
  if (sizing.device.kind == DeviceKind::kCuda) return 0;
  return size_t(sizing.device.threads) * size_t(spec.context) * sizeof(float);
}

void CachedAttention::run(const Call& call) const {
  const Tensor &qkv = call.in[0], &o = call.out[0], &cache = call.out[1];
  const int64_t hidden = spec.heads * spec.head_dim;
  const Batch& batch = *call.batch;
  const auto cache_row = [&](int64_t token) {
    const int64_t row =
        int64_t(batch.samples[batch.row_of[token]]) * spec.context + batch.positions[token];
    SNUG_CHECK(batch.positions[token] < spec.context && row < cache.rows);
    return row;
  };
  for (int64_t t = 0; t < qkv.rows; ++t) {
    std::copy_n(qkv.f32() + t * 3 * hidden + hidden, 2 * hidden,
                cache.f32() + cache_row(t) * 2 * hidden);
  }
  auto* const scores = reinterpret_cast<float*>(call.workspace.data());
  over_ranges(qkv.rows * spec.heads, 1, [&](int64_t begin, int64_t end) {
    float* const own = scores + omp_get_thread_num() * spec.context;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t t = item / spec.heads, column = item % spec.heads * spec.head_dim;
      const float* const first =
          cache.f32() + (cache_row(t) - batch.positions[t]) * 2 * hidden + column;
      HWY_DYNAMIC_DISPATCH(AttendToCache)
      ({.q = qkv.f32() + t * 3 * hidden + column,
        .k = first,
        .v = first + hidden,
        .stride = size_t(2 * hidden),
        .keys = size_t(batch.positions[t]) + 1,
        .head_dim = size_t(spec.head_dim),
        .scores = own,
        .o = o.f32() + t * hidden + column});
    }
  });
}

OpPtr cached_attention(const CachedAttentionSpec& spec) {
  return std::make_shared<CachedAttention>(spec);
}

}  // namespace snug
#endif  // HWY_ONCE
