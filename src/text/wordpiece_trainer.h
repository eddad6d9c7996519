// Learns a WordPiece vocabulary from text: byte-pair merges over words, with "##" inside them, as
// the reference trainer does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/normalizer.h"
#include "text/word_counts.h"

namespace snug {

struct WordPieceTrainerOptions {
  NormalizerOptions normalizer = {};
  size_t max_distinct_words = 500'000;  // about 60 MB; beyond it the rarer half is forgotten
  size_t max_alphabet = 1'000;          // characters; words with rarer ones are left out
  uint64_t min_pair_count = 2;          // a pair seen once is not worth a token
};

class WordPieceTrainer {
 public:
  explicit WordPieceTrainer(const WordPieceTrainerOptions& options = {});

  void feed(std::string_view text);
  // [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet, then the merges; fewer than `vocab_size` when the
  // text holds no more. Errors: a size that leaves no room for a single character, or no text at
  // all (kUsage, kInput).
  std::vector<std::string> train(size_t vocab_size) const;

  size_t distinct_words() const { return counts_.size(); }

 private:
  WordPieceTrainerOptions options_;
  Normalizer normalizer_;
  NormalizedText scratch_;
  WordCounts counts_;
};

}  // namespace snug
