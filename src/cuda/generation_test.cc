// The kernels that generate texts against the CPU operators: attention to a cache, sampling.
#include "cuda/language_test_util.h"
#include "ops/cached_attention.h"
#include "ops/sample.h"

namespace snug::cuda {
namespace {

void check_cached_attention(const CacheBatch& batch, DType dtype, const CachedAttentionSpec& spec,
                            int64_t texts, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", " << spec.heads << " heads of "
                                  << spec.head_dim << ", " << batch.batch.dims.tokens
                                  << " tokens, context " << spec.context);
  const int64_t hidden = spec.heads * spec.head_dim;
  CudaCase c(batch, bucket_of(batch.batch, seed), seed);
  c.check(CachedAttention(spec), {c.random(tokens(dtype, 3 * hidden), 1.5)},
          {c.output(tokens(dtype, hidden)),
           c.random(fixed(dtype, texts * spec.context, 2 * hidden), 1.5)},
          2.0, dtype == DType::kF32 ? 2e-5 : 0.0);
}

TEST(CudaCachedAttention, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  const CacheBatch one_each({1, 1, 1, 1, 1}, {0, 40, 7, 149, 64}, {4, 0, 1, 5, 2}, 1);
  const CacheBatch prompts({9, 1, 17, 70}, {0, 3, 12, 0}, {3, 0, 4, 1}, 2);
  uint64_t seed = 0;
  for (DType dtype : types_here()) {
    for (const int64_t head_dim : {4, 7, 32, 64, 80, 96, 100, 128, 200, 256}) {
      for (const CacheBatch* batch : {&one_each, &prompts}) {
        check_cached_attention(
            *batch, dtype, {.heads = 1 + int64_t(seed % 3), .head_dim = head_dim, .context = 150},
            6, seed);
        ++seed;
      }
    }
  }
}

// Enough blocks that each does several tokens.
TEST(CudaCachedAttention, MatchesTheCpuForLongPrompts) {
  SNUG_NEEDS_GPU();
  const CacheBatch batch({301, 1, 1, 200, 2, 150}, {0, 400, 0, 100, 7, 0}, {0, 1, 2, 3, 4, 5}, 1);
  uint64_t seed = 1;
  for (DType dtype : types_here()) {
    for (const int64_t head_dim : {64, 256}) {
      check_cached_attention(batch, dtype, {.heads = 4, .head_dim = head_dim, .context = 512}, 6,
                             seed++);
    }
  }
}

// A text token by token gets the same bits as all of it at once.
TEST(CudaCachedAttention, OneByOneIsAllAtOnce) {
  SNUG_NEEDS_GPU();
  constexpr int kTokens = 150, kBefore = 3;
  const CachedAttentionSpec spec = {.heads = 2, .head_dim = 64, .context = 200};
  const int64_t hidden = spec.heads * spec.head_dim;
  const CachedAttention op(spec);
  for (DType dtype : types_here()) {
    const size_t row_bytes = size_t(hidden) * dtype_bytes(dtype);
    const CacheBatch all({kTokens}, {kBefore}, {1}, 1);
    CudaCase at_once(all, bucket_of(all.batch, 1), 1);
    const ValueId qkv = at_once.random(tokens(dtype, 3 * hidden));
    const ValueId cache = at_once.random(fixed(dtype, 2 * spec.context, 2 * hidden));
    const auto expected =
        at_once.launch_op(op, {qkv}, {at_once.output(tokens(dtype, hidden)), cache});
    Doubles cached = at_once.contents(cache);
    for (int t = 0; t < kTokens; ++t) {
      const CacheBatch one({1}, {kBefore + t}, {1}, 1);
      CudaCase step(one, one.batch.dims, 1);
      const auto row = at_once.contents(qkv).begin() + t * 3 * hidden;
      const auto got = step.launch_op(
          op, {step.input(tokens(dtype, 3 * hidden), Doubles(row, row + 3 * hidden))},
          {step.output(tokens(dtype, hidden)),
           step.input(fixed(dtype, 2 * spec.context, 2 * hidden), cached)});
      ASSERT_EQ(std::memcmp(got[0].data(), expected[0].data() + size_t(t) * row_bytes, row_bytes),
                0)
          << dtype_name(dtype) << ", token " << t;
      cached = decoded(got[1], dtype);
    }
    EXPECT_EQ(cached, decoded(expected[1], dtype));
  }
}

// Ids are equal, and so are bytes of what was seen.
void check_sample(CudaCase& c, const SampleSpec& spec, ValueId logits, ValueId next, ValueId seen,
                  int64_t rows) {
  if (leaves_out_case()) return;
  SCOPED_TRACE(testing::Message() << "temperature " << spec.temperature << ", top-k " << spec.top_k
                                  << ", top-p " << spec.top_p << ", penalty "
                                  << spec.repetition_penalty);
  const Sample op(spec);
  const std::vector<ValueId> out = {next, spec.repetition_penalty == 1.0f ? kNoValue : seen};
  const auto got = c.launch_op(op, {logits}, out);
  EXPECT_EQ(got, c.launch_op(op, {logits}, out)) << "two runs differ";
  const auto expected = c.reference(op, {logits}, out);
  const Doubles drawn = decoded(got[0], DType::kF32);
  for (size_t i = 0; i < drawn.size(); ++i) {
    if (i >= size_t(2 * rows)) {
      EXPECT_EQ(drawn[i], 0.0) << "padding";
    } else if (i % 2 == 0) {
      EXPECT_EQ(drawn[i], expected[0][i]) << "row " << i / 2;
    } else {
      EXPECT_NEAR(drawn[i], expected[0][i], 1e-5 + 1e-6 * std::abs(expected[0][i]))
          << "row " << i / 2;
    }
  }
  if (out[1] != kNoValue) {
    EXPECT_EQ(decoded(got[1], DType::kU8), expected[1]);
  }
}

TEST(CudaSample, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  const std::vector<SampleSpec> specs = {
      {},
      {.repetition_penalty = 1.3f},
      {.temperature = 1.0f, .seed = 1},
      {.temperature = 0.7f, .top_k = 1, .seed = 2},
      {.temperature = 1.0f, .top_k = 5, .seed = 3},
      {.temperature = 1.5f, .top_k = 50, .repetition_penalty = 1.2f, .seed = 4},
      {.temperature = 0.1f, .top_k = 60, .seed = 5},
      {.temperature = 1.0f, .top_k = 100000, .seed = 6},
      {.temperature = 1.0f, .top_p = 0.9f, .seed = 7},
      {.temperature = 0.8f, .top_p = 0.05f, .seed = 8},
      {.temperature = 2.0f, .top_p = 0.999f, .seed = 9},
      {.temperature = 1.0f,
       .top_k = 40,
       .top_p = 0.7f,
       .repetition_penalty = 0.8f,
       .seed = uint64_t{5} << 40},
  };
  uint64_t seed = 1;
  for (DType dtype : types_here()) {
    for (const int64_t vocabulary : {1, 31, 97, 1000, 50257}) {
      const std::vector<int> before = {0, 5, 5, 0, 1, 2, 3, 0, 70, 5, 5, 5};  // some begin anew
      const CacheBatch batch(std::vector<int>(12, 3), before,
                             {7, 3, 5, 1, 0, 2, 11, 9, 8, 6, 4, 10}, seed, int(vocabulary));
      CudaCase c(batch, bucket_of(batch.batch, seed), seed);
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", vocabulary " << vocabulary);
      const ValueId logits = c.random(targets(dtype, vocabulary), 3.0, seed % 2 ? -40.0 : 0.0);
      const ValueId next = c.output(targets(DType::kF32, 2));
      Doubles held(size_t(12 * vocabulary));
      for (size_t i = 0; i < held.size(); ++i) held[i] = i % 7 == 3;
      const ValueId seen = c.input(fixed(DType::kU8, 12, vocabulary), held);
      for (const SampleSpec& spec : specs) {
        check_sample(c, spec, logits, next, seen, batch.batch.dims.targets);
      }
      ++seed;
    }
  }
}

// Many equal logits lie in one bin, more than are listed.
TEST(CudaSample, KeepsEqualLogitsTogether) {
  SNUG_NEEDS_GPU();
  constexpr int64_t kVocabulary = 5000;
  const CacheBatch batch(std::vector<int>(8, 1), std::vector<int>(8, 0), {0, 1, 2, 3, 4, 5, 6, 7},
                         1, kVocabulary);
  for (const int levels : {1, 2, 3}) {
    CudaCase c(batch, bucket_of(batch.batch, 1), 1);
    Doubles values(size_t(8 * kVocabulary));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.5 * double(i % size_t(levels)) - (i % 2 ? 0.0 : -0.0);
    }
    const ValueId logits = c.input(targets(DType::kF32, kVocabulary), values),
                  next = c.output(targets(DType::kF32, 2));
    for (const int64_t top_k : {0, 7, 3000}) {
      for (const float top_p : {1.0f, 0.6f}) {
        check_sample(c, {.temperature = 1.0f, .top_k = top_k, .top_p = top_p, .seed = 3}, logits,
                     next, kNoValue, 8);
      }
    }
  }
}

TEST(CudaSample, DrawsByProbability) {
  SNUG_NEEDS_GPU();
  constexpr int64_t kVocabulary = 11;
  constexpr int kTexts = 4096;
  std::vector<uint64_t> texts(kTexts);
  std::iota(texts.begin(), texts.end(), uint64_t{0});
  const CacheBatch batch(std::vector<int>(kTexts, 1), std::vector<int>(kTexts, 4), texts, 1,
                         kVocabulary);
  CudaCase c(batch, batch.batch.dims, 1);
  Doubles row(kVocabulary), all;
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::sin(double(3 * i)) * 2.0;
  for (int t = 0; t < kTexts; ++t) all.insert(all.end(), row.begin(), row.end());
  const ValueId logits = c.input(targets(DType::kF32, kVocabulary), all),
                next = c.output(targets(DType::kF32, 2));
  const Doubles drawn = decoded(
      c.launch_op(Sample({.temperature = 1.0f, .seed = 9}), {logits}, {next})[0], DType::kF32);
  Doubles counts(kVocabulary);
  for (size_t i = 0; i < drawn.size(); i += 2) counts.at(size_t(drawn[i])) += 1;
  double total = 0;
  for (double x : row) total += std::exp(x);
  for (size_t i = 0; i < row.size(); ++i) {
    const double p = std::exp(row[i]) / total;
    EXPECT_NEAR(counts[i], kTexts * p, 5.0 * std::sqrt(kTexts * p * (1.0 - p))) << i;
  }
}

}  // namespace
}  // namespace snug::cuda
