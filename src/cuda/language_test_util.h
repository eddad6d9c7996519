// What tests of language models' kernels share: batches that know which tokens predict.
#pragma once

#include "cuda/cuda_test_util.h"

namespace snug::cuda {

enum class Predicting { kAllButLast, kSome, kLast };

// A batch that knows which tokens predict, and what.
struct TargetBatch : PackedBatch {
  std::vector<int32_t> predicting, predicted;

  TargetBatch(const std::vector<int>& lengths, uint64_t seed, Predicting which, int vocab)
      : PackedBatch(lengths, seed, vocab) {
    std::mt19937_64 random(seed + 5);
    for (int32_t t = 0; t < int32_t(ids.size()); ++t) {
      const bool last = t + 1 == starts[size_t(row_of[size_t(t)]) + 1];
      const bool is_one =
          which == Predicting::kSome ? random() % 6 == 0 : last == (which == Predicting::kLast);
      if (!is_one) continue;
      predicting.push_back(t);
      predicted.push_back(int32_t(random() % uint64_t(vocab)));
    }
    batch.dims.targets = int64_t(predicting.size());
    batch.target_rows = predicting.data(), batch.target_ids = predicted.data();
    for (size_t s = 0; s < samples.size(); ++s) {
      samples[s] = s, labels[s] = int32_t(100 + s);  // place and number of a text
    }
  }
};

// Micro-batches of `lengths` tokens of texts that already have `before` in the cache.
struct CacheBatch : TargetBatch {
  CacheBatch(const std::vector<int>& lengths, const std::vector<int>& before,
             const std::vector<uint64_t>& texts, uint64_t seed, int vocab = 50)
      : TargetBatch(lengths, seed, Predicting::kLast, vocab) {
    for (size_t t = 0; t < positions.size(); ++t) positions[t] += before[size_t(row_of[t])];
    std::copy(texts.begin(), texts.end(), samples.begin());
  }
};

}  // namespace snug::cuda
