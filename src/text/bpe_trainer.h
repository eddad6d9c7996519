// Learns a byte-level BPE vocabulary from text, for GPT-2 or RoBERTa: the 256 bytes, then merges
// within the words of GPT-2's pattern, as the reference trainer does.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/bpe.h"
#include "text/word_counts.h"

namespace snug {

struct BpeTrainerOptions {
  size_t max_distinct_words = 500'000;  // about 60 MB; beyond it the rarer half is forgotten
  uint64_t min_pair_count = 2;          // a pair seen once is not worth a token
};

class BpeTrainer {
 public:
  explicit BpeTrainer(const BpeTrainerOptions& options = {});

  void feed(std::string_view text);
  // GPT-2: the bytes in its order, the merges, <|endoftext|>. RoBERTa: <s> <pad> </s> <unk>, the
  // bytes, the merges, <mask>. Fewer than `vocab_size` when the text holds no more. Errors: a size
  // that leaves no room for all bytes, or no text at all (kUsage, kInput).
  BpeVocabulary train(size_t vocab_size, BpeFamily family) const;

  size_t distinct_words() const { return counts_.size(); }

 private:
  BpeTrainerOptions options_;
  WordCounts counts_;
};

}  // namespace snug
