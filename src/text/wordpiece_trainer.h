// Learns a WordPiece vocabulary from text: byte-pair merges over words, with "##" inside them, as
// the reference trainer does. The count of every pair is kept up to date instead of recounted, and
// ties go to the pair that sorts first, so the result depends on the texts alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"

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
  struct WordHash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };
  using Counts = std::unordered_map<std::string, uint64_t, WordHash, std::equal_to<>>;

  void count(std::string_view word);
  void forget_rare_words();

  WordPieceTrainerOptions options_;
  Normalizer normalizer_;
  NormalizedText scratch_;
  Counts counts_;
};

}  // namespace snug
