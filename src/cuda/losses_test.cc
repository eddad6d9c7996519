// The kernels of all losses but a vocabulary's (language_test.cc) against the CPU operators.
#include "cuda/cuda_test_util.h"
#include "ops/binary_cross_entropy.h"
#include "ops/cross_entropy.h"
#include "ops/span_loss.h"
#include "ops/squared_error.h"

namespace snug::cuda {
namespace {

constexpr TensorDesc kLoss = {DType::kF64, Rows::kFixed, 1, 1};

// Loss and gradient, and either alone.
template <class OpType>
void check_loss(CudaCase& c, const OpType& op, const std::vector<ValueId>& in,
                const TensorDesc& gradient) {
  const ValueId loss = c.target(kLoss, true);
  c.check(op, in, {loss, c.output(gradient)});
  c.check(op, in, {loss});
  c.check(op, in, {kNoValue, c.output(gradient)});
}

const std::vector<std::vector<int>> kBatches = {std::vector<int>(1, 1), std::vector<int>(3, 1),
                                                std::vector<int>(700, 1)};

TEST(CudaCrossEntropy, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  for (const std::vector<int>& lengths : kBatches) {
    for (int classes : {1, 2, 3, 4, 5, 31, 33, 200}) {
      for (DType dtype : types_here()) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", " << classes << " classes, "
                                        << lengths.size() << " texts");
        PackedBatch packed(lengths, uint64_t(classes), 50, 2, classes);
        const TensorDesc desc = sequences(dtype, classes);
        {
          CudaCase c(packed, bucket_of(packed.batch, 1), uint64_t(classes));
          const ValueId logits = c.random(desc, 3.0), teacher = c.random(desc, 3.0, 20.0);
          for (const float smoothing : {0.0f, 0.1f}) {
            check_loss(c, CrossEntropy({.classes = classes, .smoothing = smoothing}), {logits},
                       desc);
          }
          for (const Distillation& how : {Distillation{2.0f, 0.5f}, {1.0f, 1.0f}, {4.0f, 0.0f}}) {
            check_loss(c, CrossEntropy({.classes = classes, .distillation = how}),
                       {logits, teacher}, desc);
          }
          check_loss(
              c,
              CrossEntropy({.classes = classes, .distillation = {2.0f, 0.5f}, .smoothing = 0.2f}),
              {logits, teacher}, desc);
        }
        std::vector<int32_t> words;
        for (size_t s = 0; s < lengths.size(); ++s) {
          words.insert(words.end(),
                       {packed.labels[s], std::bit_cast<int32_t>(0.3f * float(s % 7))});
        }
        packed.set_labels(words);
        CudaCase c(packed, bucket_of(packed.batch, 1), uint64_t(classes));
        for (const float smoothing : {0.0f, 0.1f}) {
          check_loss(c,
                     CrossEntropy({.classes = classes, .smoothing = smoothing, .weighted = true}),
                     {c.random(desc, 3.0)}, desc);
        }
      }
    }
  }
}

// Thousands of rows: many blocks.
TEST(CudaCrossEntropy, MatchesTheCpuOnTargets) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (const std::vector<int>& lengths :
       {std::vector<int>{1}, {40, 3, 100}, {4000, 1, 3000, 2500}}) {
    for (int classes : {2, 4, 9, 33}) {
      for (DType dtype : types_here()) {
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", " << classes << " classes, seed " << ++seed);
        PackedBatch packed(lengths, seed);
        std::mt19937_64 random(seed);
        std::vector<int32_t> rows, ids;
        for (int32_t t = 0; t < int32_t(packed.ids.size()); ++t) {
          if (t > 0 && random() % 4 == 0) continue;
          rows.push_back(t);
          ids.push_back(int32_t(random() % uint64_t(classes + 1)) - 1);
        }
        packed.batch.dims.targets = int64_t(rows.size());
        packed.batch.target_rows = rows.data(), packed.batch.target_ids = ids.data();
        for (const bool weighted : {false, true}) {
          if (weighted) {
            std::vector<int32_t> words(lengths.size() * size_t(1 + classes));
            for (int32_t& word : words) word = std::bit_cast<int32_t>(0.3f * float(random() % 7));
            packed.set_labels(words);
          }
          CudaCase c(packed, bucket_of(packed.batch, seed), seed);
          const ValueId logits = c.random(targets(dtype, classes), 3.0);
          for (const float smoothing : {0.0f, 0.1f}) {
            const CrossEntropySpec spec{.classes = classes,
                                        .rows = Rows::kTargets,
                                        .smoothing = smoothing,
                                        .weighted = weighted};
            check_loss(c, CrossEntropy(spec), {logits}, targets(dtype, classes));
          }
        }
      }
    }
  }
}

TEST(CudaBinaryCrossEntropy, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (const std::vector<int>& lengths : kBatches) {
    for (int64_t classes : {1, 2, 5, 31, 32, 33, 64, 200}) {
      for (DType dtype : types_here()) {
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", " << classes << " classes, seed " << ++seed);
        PackedBatch packed(lengths, seed);
        const BinaryCrossEntropy op({.classes = classes});
        std::mt19937_64 random(seed);
        std::vector<int32_t> words(lengths.size() * size_t(op.spec.label_words()));
        for (int32_t& word : words) word = int32_t(uint32_t(random()));
        packed.set_labels(words);
        CudaCase c(packed, bucket_of(packed.batch, seed), seed);
        check_loss(c, op, {c.random(sequences(dtype, classes), 4.0)}, sequences(dtype, classes));
      }
    }
  }
}

TEST(CudaSquaredError, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (const std::vector<int>& lengths : kBatches) {
    for (int64_t numbers : {1, 2, 5, 33}) {
      for (DType dtype : types_here()) {
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", " << numbers << " numbers, seed " << ++seed);
        PackedBatch packed(lengths, seed);
        std::mt19937_64 random(seed);
        std::normal_distribution<float> normal(1.0f, 2.0f);
        std::vector<int32_t> words;
        for (size_t i = 0; i < lengths.size() * size_t(numbers); ++i) {
          words.push_back(std::bit_cast<int32_t>(
              random() % 5 == 0 ? std::numeric_limits<float>::quiet_NaN() : normal(random)));
        }
        packed.set_labels(words);
        CudaCase c(packed, bucket_of(packed.batch, seed), seed);
        check_loss(c, SquaredError({.numbers = numbers}),
                   {c.random(sequences(dtype, numbers), 2.0)}, sequences(dtype, numbers));
      }
    }
  }
}

TEST(CudaSpanLoss, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (const std::vector<int>& lengths :
       {std::vector<int>{1}, {1, 1, 1}, {5, 1, 300, 17}, {256, 257, 255, 32}, {2, 64, 4099, 3}}) {
    for (DType dtype : types_here()) {
      for (int round = 0; round < 3; ++round) {
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", " << lengths.size() << " texts, seed " << ++seed);
        PackedBatch packed(lengths, seed);
        std::mt19937_64 random(seed);
        std::vector<int32_t> words;
        for (const int length : lengths) {
          for (int end = 0; end < 2; ++end) {
            words.push_back(random() % 5 == 0 ? -1 : int32_t(random() % uint64_t(length)));
          }
        }
        packed.set_labels(words);
        CudaCase c(packed, bucket_of(packed.batch, seed), seed);
        check_loss(c, SpanLoss(), {c.random(tokens(dtype, 2), 3.0)}, tokens(dtype, 2));
      }
    }
  }
}

}  // namespace
}  // namespace snug::cuda
