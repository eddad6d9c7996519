// The Unigram model of tokenizer.json, as ALBERT, XLNet, T5 and XLM-RoBERTa have it: of all ways to
// divide a word into known pieces, the one whose scores sum up highest. Spaces are a character of
// the pieces, "▁", so the text can be put together again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/normalizer_steps.h"
#include "text/piece_trie.h"
#include "text/subword_tokenizer.h"

namespace snug {

// The pre-tokenizer Metaspace: spaces become `replacement`, and words begin with it.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement = "\u2581";
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

struct UnigramModel {
  std::vector<double> scores;  // by id
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;  // an unknown character becomes the tokens of its bytes
  bool splits_at_spaces = false;
  std::optional<Metaspace> metaspace;
  // As tokenizer.json has them; already understood.
  Json normalizer, pre_tokenizer;
};

// Everything a Unigram tokenizer is.
struct UnigramSpec {
  TokenizerSpec common;
  UnigramModel model;
};

class UnigramTokenizer final : public SubwordTokenizer {
 public:
  // `origin` is the file to name in errors (kInput).
  UnigramTokenizer(UnigramSpec spec, std::string_view origin);

  std::string token_bytes(int32_t id, TextPlace place) const override;
  void save(const std::filesystem::path& folder) const override;
  uint64_t word_times() const override { return 64; }  // measured with 20 MB

 private:
  struct Scratch;
  struct Word;

  static Scratch& scratch();
  void tokenize_piece(std::string_view piece, uint32_t& code_point,
                      TokenBuffer& out) const override;
  void tokenize_slice(Scratch& work, bool first, TokenBuffer& out) const;
  void split_words(size_t end, bool first, Scratch& work, TokenBuffer& out) const;
  void split_at_replacement(size_t begin, size_t end, bool first, Scratch& work,
                            TokenBuffer& out) const;
  void append_word(const Word& word, Scratch& work, TokenBuffer& out) const;
  void find_best_path(std::string_view text, Scratch& work) const;
  void append_unknown(const Word& word, size_t begin, size_t end, Scratch& work,
                      TokenBuffer& out) const;

  UnigramModel model_;
  NormalizerSteps normalizer_;
  std::unique_ptr<NormalizerStep> space_replacer_;  // where words are not split at spaces before
  PieceTrie trie_;
  AddedTokenMatcher normalized_matcher_;
  double unknown_score_ = 0;
  std::vector<int32_t> byte_ids_;  // 256 with byte_fallback, -1 where there is none
  std::string decoder_replacement_;
  bool decoder_drops_first_ = false;
  uint32_t cache_owner_ = 0, prefixed_cache_owner_ = 0;
};

}  // namespace snug
