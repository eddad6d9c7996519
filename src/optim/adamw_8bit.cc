#include "optim/adamw_8bit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adamw_8bit.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "optim/adamw-inl.h"
#include "optim/dynamic_tree.h"
#include "optim/rounding-inl.h"

#ifndef SNUG_OPTIM_ADAMW_8BIT_ARGUMENTS_
#define SNUG_OPTIM_ADAMW_8BIT_ARGUMENTS_
namespace snug {

struct EightBitArrays {
  float* w;
  const float* g;
  uint8_t *m, *v;
  float *m_scales, *v_scales;
};

// Blocks whose largest moment is smaller are zero: its inverse would overflow.
inline constexpr float kLeastMoment = 1e-36f;

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVector = hn::Vec<IntTag>;
using CodeTag = hn::Rebind<uint8_t, FloatTag>;

static_assert(kStrip == size_t(kMomentBlock));

HWY_INLINE IntVector load_codes(const uint8_t* from) {
  return hn::PromoteTo(IntTag(), hn::LoadU(CodeTag(), from));
}

// Codes of kBits bits for x in [0, 1): of the two neighbours of x in the tree the upper one where
// `threshold`, in [0, 1), is below the way from the lower one to x.
template <int kBits>
HWY_INLINE IntVector tree_codes(const float* HWY_RESTRICT values, FloatVector x,
                                FloatVector threshold) {
  const FloatTag d;
  const IntTag di;
  // The part of its decade in which x lies, from [0.1, 1) scaled to whole numbers.
  float power = 1.0f, parts = float(1 << (kBits - 1)), bound = 0.1f;
  auto factor = hn::Set(d, power * parts / 0.9f), first = hn::Set(d, parts);
  for (int decade = 1; decade < kBits; ++decade) {
    power *= 10.0f;
    parts /= 2.0f;
    const auto below = hn::Lt(x, hn::Set(d, bound));
    factor = hn::IfThenElse(below, hn::Set(d, power * parts / 0.9f), factor);
    first = hn::IfThenElse(below, hn::Set(d, parts), first);
    bound /= 10.0f;
  }
  const auto part = hn::NegMulAdd(first, hn::Set(d, 0.1f / 0.9f), hn::Mul(x, factor));
  auto code = hn::ConvertTo(di, hn::Add(first, hn::Max(part, hn::Zero(d))));
  code = hn::IfThenElseZero(hn::RebindMask(di, hn::Ge(x, hn::Set(d, bound))), code);
  // Where x is below the middle of its part, the lower neighbour is the code before.
  code = hn::Min(hn::Max(code, hn::Zero(di)), hn::Set(di, (1 << kBits) - 1));
  const auto beyond = hn::RebindMask(di, hn::Gt(hn::GatherIndex(d, values, code), x));
  code = hn::Sub(code, hn::IfThenElseZero(beyond, hn::Set(di, 1)));
  code = hn::Min(hn::Max(code, hn::Zero(di)), hn::Set(di, (1 << kBits) - 2));
  const auto lower = hn::GatherIndex(d, values, code);
  const auto upper = hn::GatherIndex(d, values, hn::Add(code, hn::Set(di, 1)));
  const auto up =
      hn::RebindMask(di, hn::Lt(hn::Mul(threshold, hn::Sub(upper, lower)), hn::Sub(x, lower)));
  return hn::Add(code, hn::IfThenElseZero(up, hn::Set(di, 1)));
}

HWY_INLINE void store_codes(IntVector codes, uint8_t* to) {
  hn::StoreU(hn::DemoteTo(CodeTag(), codes), CodeTag(), to);
}

// One block, all of it.
HWY_INLINE void update_block(const EightBitArrays& a, const AdamWFactors& f,
                             const uint16_t* draws) {
  const FloatTag d;
  const IntTag di;
  HWY_ALIGN float first[kStrip], second[kStrip];
  auto largest_first = hn::Zero(d), largest_second = hn::Zero(d);
  const auto m_scale = hn::Set(d, *a.m_scales), v_scale = hn::Set(d, *a.v_scales);
  for (size_t i = 0; i < kStrip; i += hn::Lanes(d)) {
    const auto m_code = load_codes(a.m + i);
    const auto magnitude =
        hn::GatherIndex(d, kMagnitudes.data(), hn::And(m_code, hn::Set(di, 127)));
    const auto sign = hn::BitCast(d, hn::ShiftLeft<31>(hn::ShiftRight<7>(m_code)));
    auto m = hn::Mul(hn::Or(magnitude, sign), m_scale);
    const auto root = hn::Mul(hn::GatherIndex(d, kPositives.data(), load_codes(a.v + i)), v_scale);
    auto v = hn::Mul(root, root);
    hn::StoreU(adamw_element(d, f, hn::LoadU(d, a.w + i), hn::LoadU(d, a.g + i), m, v), d, a.w + i);
    const auto new_root = hn::Sqrt(v);
    hn::Store(m, d, first + i);
    hn::Store(new_root, d, second + i);
    largest_first = hn::Max(largest_first, hn::Abs(m));
    largest_second = hn::Max(largest_second, new_root);
  }
  float m_largest = hn::GetLane(hn::MaxOfLanes(d, largest_first)),
        v_largest = hn::GetLane(hn::MaxOfLanes(d, largest_second));
  if (!(m_largest >= kLeastMoment)) m_largest = 0.0f;
  if (!(v_largest >= kLeastMoment)) v_largest = 0.0f;
  *a.m_scales = m_largest / kMagnitudes.back();
  *a.v_scales = v_largest / kPositives.back();
  const auto m_inverse = hn::Set(d, m_largest > 0.0f ? kMagnitudes.back() / m_largest : 0.0f);
  const auto v_inverse = hn::Set(d, v_largest > 0.0f ? kPositives.back() / v_largest : 0.0f);
  for (size_t i = 0; i < kStrip; i += hn::Lanes(d)) {
    const auto m = hn::Load(d, first + i), root = hn::Load(d, second + i);
    const auto m_code =
        tree_codes<7>(kMagnitudes.data(), hn::Mul(hn::Abs(m), m_inverse), hn::Set(d, 0.5f));
    const auto sign =
        hn::IfThenElseZero(hn::RebindMask(di, hn::Lt(m, hn::Zero(d))), hn::Set(di, 128));
    store_codes(hn::Or(m_code, sign), a.m + i);
    const auto draw = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, FloatTag>(), draws + i));
    const auto threshold = hn::Mul(hn::ConvertTo(d, draw), hn::Set(d, 1.0f / 65536.0f));
    const auto v_code = tree_codes<8>(kPositives.data(), hn::Mul(root, v_inverse), threshold);
    const auto some = hn::RebindMask(di, hn::Gt(hn::Mul(root, v_inverse), hn::Zero(d)));
    store_codes(hn::IfThenElseZero(some, hn::Max(v_code, hn::Set(di, 1))), a.v + i);
  }
}

// Block number `block` of a parameter; `arrays` begin there.
void Update8BitBlock(const EightBitArrays& arrays, size_t block, size_t count,
                     const AdamWFactors& factors, const RoundingDraws& key) {
  uint16_t draws[kStrip];
  strip_draws(key, RoundedArray::kSecondMoments, block * kStrip, draws);
  if (count == kStrip) return update_block(arrays, factors, draws);
  float w[kStrip] = {}, g[kStrip] = {};
  uint8_t m[kStrip] = {}, v[kStrip] = {};
  std::memcpy(w, arrays.w, count * sizeof(float));
  std::memcpy(g, arrays.g, count * sizeof(float));
  std::memcpy(m, arrays.m, count);
  std::memcpy(v, arrays.v, count);
  update_block({w, g, m, v, arrays.m_scales, arrays.v_scales}, factors, draws);
  std::memcpy(arrays.w, w, count * sizeof(float));
  std::memcpy(arrays.m, m, count);
  std::memcpy(arrays.v, v, count);
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/error.h"
#include "core/memory.h"

namespace snug {

HWY_EXPORT(Update8BitBlock);

EightBitLayout eight_bit_layout(int64_t size) {
  const size_t codes = align_up(size_t(size));
  const size_t scales = align_up(size_t((size + kMomentBlock - 1) / kMomentBlock) * sizeof(float));
  return {.second = codes,
          .first_scales = 2 * codes,
          .second_scales = 2 * codes + scales,
          .bytes = 2 * codes + 2 * scales};
}

void adamw_8bit(std::span<float> w, std::span<const float> g, std::byte* state,
                const OptimizerStep& step, uint64_t parameter) {
  SNUG_CHECK(g.size() == w.size() && step.step >= 1);
  const AdamWFactors factors = adamw_factors(step);
  const RoundingDraws draws = rounding_draws(step.seed, step.step, parameter);
  const auto size = int64_t(w.size()), blocks = (size + kMomentBlock - 1) / kMomentBlock;
  const EightBitLayout layout = eight_bit_layout(size);
  auto* const codes = reinterpret_cast<uint8_t*>(state);
  const auto scales = [&](size_t offset) { return reinterpret_cast<float*>(state + offset); };
#pragma omp parallel for schedule(static) if (blocks > 16)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kMomentBlock, count = std::min(kMomentBlock, size - begin);
    const EightBitArrays arrays = {w.data() + begin,
                                   g.data() + begin,
                                   codes + begin,
                                   codes + layout.second + begin,
                                   scales(layout.first_scales) + block,
                                   scales(layout.second_scales) + block};
    HWY_DYNAMIC_DISPATCH(Update8BitBlock)(arrays, size_t(block), size_t(count), factors, draws);
  }
}

}  // namespace snug
#endif  // HWY_ONCE
