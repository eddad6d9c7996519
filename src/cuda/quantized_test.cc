// Kernels that read int8 weights against the CPU's.
#include "cuda/cuda_test_util.h"
#include "ops/cuda_workspace.h"
#include "ops/dequantize.h"
#include "ops/embedding.h"
#include "ops/quantize.h"
#include "ops/quantized_linear.h"

namespace snug::cuda {
namespace {

struct Quantized {
  ValueId values, scales;
};
Quantized quantized(CudaCase& c, int64_t rows, int64_t cols, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(float(cols)));
  std::vector<float> exact(size_t(rows * cols)), scales(static_cast<size_t>(rows));
  for (float& v : exact) v = normal(random);
  std::vector<int8_t> values(exact.size());
  quantize_rows(exact.data(), rows, cols, values.data(), scales.data());
  return {c.input(fixed(DType::kI8, rows, cols), Doubles(values.begin(), values.end())),
          c.input(fixed(DType::kF32, 1, rows), Doubles(scales.begin(), scales.end()))};
}

// Behind the real rows the layers leave what the padding gives, so only buckets that are full are
// compared.
TEST(CudaQuantizedLinear, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (const DType dtype : types_here()) {
    for (const Activation activation : {Activation::kNone, Activation::kGelu, Activation::kGeluTanh,
                                        Activation::kTanh, Activation::kRelu}) {
      for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 256},
                                    {1088, 48},
                                    {768, 3072},
                                    {16, 16},
                                    {100, 48},
                                    {7, 13}}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", activation " << int(activation)
                                        << ", " << in << " to " << out << ", seed " << seed);
        const PackedBatch packed({5, 1, 30, 17}, seed);
        CudaCase c(packed, packed.batch.dims, seed);
        const auto [w, scales] = quantized(c, out, in, seed);
        const ValueId x = c.random(tokens(dtype, in)),
                      b = seed % 3 == 0 ? kNoValue : c.random(fixed(dtype, 1, out));
        std::vector<ValueId> results = {c.output(tokens(dtype, out))};
        if (keeps_pre_activation(activation) && seed % 2 == 0) {
          results.push_back(c.output(tokens(dtype, out)));
        }
        // Bytes are the same on both devices, so results differ by their own rounding alone; where
        // the device does not multiply bytes, its inputs are not rounded to 127 steps, which is
        // some hundredths of the result.
        const double error = multiplies_bytes(in, out) ? dtype_error(dtype) : 0.02;
        check_product(c, QuantizedLinear({activation}), {x, w, scales, b}, results, 4.0, error);
        const ValueId dy = c.random(tokens(dtype, out), 1.0, 0.0, 0.0);
        for (const bool accumulate : {false, true}) {
          check_product(c, QuantizedLinearInputGradient(accumulate), {dy, w, scales},
                        {c.target(tokens(dtype, in), accumulate)}, 4.0, dtype_error(dtype));
        }
        ++seed;
      }
    }
  }
}

TEST(CudaQuantizedLinear, RowsOfZerosAndNan) {
  SNUG_NEEDS_GPU();
  const PackedBatch packed({3}, 1);
  CudaCase c(packed, packed.batch.dims, 1);
  c.products = &shared_products();
  const auto [w, scales] = quantized(c, 32, 64, 1);
  Doubles values(3 * 64, 0.0);
  for (size_t i = 0; i < 64; ++i) {
    values[64 + i] = i == 9 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  }
  for (size_t i = 0; i < 64; ++i) {
    values[128 + i] = i == 40 ? std::numeric_limits<double>::infinity() : 1.0;
  }
  const ValueId x = c.input(tokens(DType::kF32, 64), values), y = c.output(tokens(DType::kF32, 32));
  const auto got = c.launch_op(QuantizedLinear({}), {x, w, scales, kNoValue}, {y});
  const Doubles result = decoded(got[0], DType::kF32);
  for (size_t i = 0; i < result.size(); ++i) {
    if (i < 32) {
      EXPECT_EQ(result[i], 0.0);
    } else {
      EXPECT_FALSE(std::isfinite(result[i])) << i;
    }
  }
}

TEST(CudaDequantize, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (const DType dtype : types_here()) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {7, 13}, {64, 100}, {130, 768}}) {
      const PackedBatch packed({3}, seed);
      CudaCase c(packed, packed.batch.dims, ++seed);
      const auto [values, scales] = quantized(c, rows, cols, seed);
      c.check(Dequantize(), {values, scales}, {c.output(fixed(dtype, rows, cols))}, 1.0);
    }
  }
}

TEST(CudaEmbedding, ReadsQuantizedWords) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (const DType dtype : types_here()) {
    for (const int64_t hidden : {7, 64, 100, 384, 768}) {
      for (const bool norm : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", hidden " << hidden << ", norm " << norm);
        const PackedBatch packed({5, 1, 30, 17}, ++seed);
        const Dims dims = packed.batch.dims;
        CudaCase c(packed, {dims.tokens + 5, dims.sequences + 2, dims.longest + 3}, seed);
        const EmbeddingSpec spec = {
            .hidden = hidden, .norm = norm, .eps = 1e-5f, .dropout = 0.1f, .site = 3};
        const auto [word, scales] = quantized(c, 50, hidden, seed);
        const ValueId position = c.random(fixed(DType::kF32, 40, hidden)),
                      type = c.random(fixed(DType::kF32, 2, hidden));
        const ValueId gamma = norm ? c.random(fixed(DType::kF32, 1, hidden), 0.3, 1.0) : kNoValue;
        const ValueId beta = norm ? c.random(fixed(DType::kF32, 1, hidden)) : kNoValue;
        const TensorDesc stats = {.rows_are = Rows::kTokens, .cols = 2};
        const std::vector<ValueId> in = {word, position, type, gamma, beta, scales};
        c.check(Embedding(spec), in,
                {c.output(tokens(dtype, hidden)), norm ? c.output(stats) : kNoValue}, 4.0);
        if (!norm) continue;
        const auto kept = c.reference(Embedding(spec), in,
                                      {c.output(tokens(DType::kF32, hidden)), c.output(stats)});
        const ValueId dy = c.random(tokens(dtype, hidden), 1.0, 0.0, 0.0);
        c.check(EmbeddingGradient(spec),
                {dy, c.input(stats, kept[1], 0.0), word, position, type, gamma, scales},
                {dy, kNoValue, c.random(fixed(DType::kF32, 40, hidden)),
                 c.random(fixed(DType::kF32, 2, hidden)), c.random(fixed(DType::kF32, 1, hidden)),
                 c.random(fixed(DType::kF32, 1, hidden))},
                8.0, dtype_error(dtype));
      }
    }
  }
}

}  // namespace
}  // namespace snug::cuda
