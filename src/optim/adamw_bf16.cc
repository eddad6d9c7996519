#include "optim/adamw_bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adamw_bf16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "optim/adamw-inl.h"
#include "optim/rounding-inl.h"

#ifndef SNUG_OPTIM_ADAMW_BF16_ARGUMENTS_
#define SNUG_OPTIM_ADAMW_BF16_ARGUMENTS_
namespace snug {

struct HalfArrays {
  uint16_t* w;
  const float* g;
  uint16_t *m, *v;
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

struct StripDraws {
  uint16_t w[kStrip], m[kStrip], v[kStrip];
};

HWY_INLINE void update_strip(const HalfArrays& a, const AdamWFactors& f, const StripDraws& draws) {
  const FloatTag d;
  for (size_t i = 0; i < kStrip; i += hn::Lanes(d)) {
    auto m = load_bfloat16(a.m + i), v = load_bfloat16(a.v + i);
    const auto w = adamw_element(d, f, load_bfloat16(a.w + i), hn::LoadU(d, a.g + i), m, v);
    store_rounded(w, draws.w + i, a.w + i);
    store_rounded(m, draws.m + i, a.m + i);
    store_rounded(v, draws.v + i, a.v + i);
  }
}

// Elements [first, first + count) of a parameter, at most a strip; `arrays` begin there.
void UpdateBfloat16Strip(const HalfArrays& arrays, size_t first, size_t count,
                         const AdamWFactors& factors, const RoundingDraws& key) {
  StripDraws draws;
  strip_draws(key, RoundedArray::kWeights, first, draws.w);
  strip_draws(key, RoundedArray::kFirstMoments, first, draws.m);
  strip_draws(key, RoundedArray::kSecondMoments, first, draws.v);
  if (count == kStrip) return update_strip(arrays, factors, draws);
  uint16_t w[kStrip] = {}, m[kStrip] = {}, v[kStrip] = {};
  float g[kStrip] = {};
  std::memcpy(w, arrays.w, count * sizeof(uint16_t));
  std::memcpy(g, arrays.g, count * sizeof(float));
  std::memcpy(m, arrays.m, count * sizeof(uint16_t));
  std::memcpy(v, arrays.v, count * sizeof(uint16_t));
  update_strip({w, g, m, v}, factors, draws);
  std::memcpy(arrays.w, w, count * sizeof(uint16_t));
  std::memcpy(arrays.m, m, count * sizeof(uint16_t));
  std::memcpy(arrays.v, v, count * sizeof(uint16_t));
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/error.h"
#include "core/memory.h"

namespace snug {

HWY_EXPORT(UpdateBfloat16Strip);

HalfMomentLayout half_moment_layout(int64_t size) {
  const size_t bytes = align_up(size_t(size) * sizeof(uint16_t));
  return {.second = bytes, .bytes = 2 * bytes};
}

void adamw_bf16(std::span<uint16_t> w, std::span<const float> g, std::byte* state,
                const OptimizerStep& step, uint64_t parameter) {
  SNUG_CHECK(g.size() == w.size() && step.step >= 1);
  const AdamWFactors factors = adamw_factors(step);
  const RoundingDraws draws = rounding_draws(step.seed, step.step, parameter);
  constexpr int64_t kStripElements = 256;
  const auto size = int64_t(w.size()), strips = (size + kStripElements - 1) / kStripElements;
  auto* const m = reinterpret_cast<uint16_t*>(state);
  auto* const v = reinterpret_cast<uint16_t*>(state + half_moment_layout(size).second);
#pragma omp parallel for schedule(static) if (strips > 16)
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t begin = strip * kStripElements, count = std::min(kStripElements, size - begin);
    HWY_DYNAMIC_DISPATCH(UpdateBfloat16Strip)
    ({w.data() + begin, g.data() + begin, m + begin, v + begin}, size_t(begin), size_t(count),
     factors, draws);
  }
}

}  // namespace snug
#endif  // HWY_ONCE
