#include "ops/convert.h"

#include "core/error.h"
#include "ops/parallel.h"

namespace snug {

void Convert::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.size() == y.size());
  if (x.dtype == DType::kBF16) {
    SNUG_CHECK(y.dtype == DType::kF32);
    const auto* const from = static_cast<const uint16_t*>(x.data);
    over_ranges(x.size(), kColumnGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y.f32()[i] = bfloat16_to_float(from[i]);
    });
    return;
  }
  SNUG_CHECK(x.dtype == DType::kF32 && dtype_bytes(y.dtype) == 2);
  auto* const to = static_cast<uint16_t*>(y.data);
  over_ranges(x.size(), kColumnGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      to[i] = y.dtype == DType::kBF16 ? float_to_bfloat16(x.f32()[i]) : float_to_half(x.f32()[i]);
    }
  });
}

OpPtr convert() { return std::make_shared<Convert>(); }

}  // namespace snug
