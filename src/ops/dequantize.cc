#include "ops/dequantize.h"

#include "core/error.h"
#include "ops/quantize.h"

namespace snug {

void Dequantize::run(const Call& call) const {
  const Tensor &q = call.in[0], &scales = call.in[1], &x = call.out[0];
  SNUG_CHECK(q.dtype == DType::kI8 && x.dtype == DType::kF32 && scales.size() == q.rows &&
             x.size() == q.size());
  dequantize_rows(static_cast<const int8_t*>(q.data), scales.f32(), q.rows, q.cols, x.f32());
}

OpPtr dequantize() { return std::make_shared<Dequantize>(); }

}  // namespace snug
