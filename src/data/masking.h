// Masked language modelling: which tokens of a text are to be guessed, and what stands in their
// place. Both come from counters (seed, sample, position), so they do not know how texts were
// packed. Of the tokens that are not special, the given share is chosen (rounded, at least one); of
// those, 80 % become the mask token, 10 % a random token and 10 % stay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace snug {

struct MaskTable {
  // Errors (kInput): a tokenizer without a mask token.
  MaskTable(const Tokenizer& tokenizer, double share, bool whole_words);

  double share;
  bool whole_words;
  int32_t mask_id, vocabulary;
  std::vector<bool> special;  // by id: never chosen
  std::vector<bool>
      continuing;  // by id: belongs to the word of the token before it; only with whole_words
};

class Masker {
 public:
  Masker(std::shared_ptr<const MaskTable> table, uint64_t seed, size_t longest_text);

  // Replaces the chosen tokens and writes their places, ascending, and what they were; returns how
  // many. Room for most_chosen(ids.size()) is needed.
  size_t apply(uint64_t sample, std::span<int32_t> ids, int32_t* places, int32_t* originals);

  static size_t most_chosen(size_t tokens, double share);
  static size_t bytes(size_t longest_text) { return longest_text * sizeof(Word); }

 private:
  struct Word {
    uint32_t key, begin, end;
  };
  void find_words(uint64_t sample, std::span<const int32_t> ids);

  std::shared_ptr<const MaskTable> table_;
  uint64_t seed_;
  std::vector<Word> words_;
};

}  // namespace snug
