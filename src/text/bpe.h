// Byte-level BPE, as GPT-2 and RoBERTa use it: split into words by GPT-2's pattern, then merge the
// bytes of each. Every byte is a token, so nothing is unknown, and decoding gives back the text:
// decode(encode(x)) is x for well-formed UTF-8, and otherwise x with U+FFFD for each maximal
// ill-formed part. (An added token that takes up the spaces around it loses them, and
// add_prefix_space adds its space.)
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/merge_table.h"
#include "text/subword_tokenizer.h"

namespace snug {

struct BpeModel {
  std::vector<Merge> merges;  // in the order of ranks
  Json unk_token;  // as the file has it: with all bytes in the vocabulary it has no effect
  bool add_prefix_space = false;  // a text, and what follows an added token, begins with a space
  bool use_regex = true;          // false: the text is one word
  // The post-processor's: offsets leave out spaces, but where the second says so not the one that
  // add_prefix_space may have put first.
  bool trim_offsets = false, trim_spares_prefix = false;
};

// Everything a BPE tokenizer is, whichever files it came from.
struct BpeSpec {
  TokenizerSpec common;
  BpeModel model;
};

class BpeTokenizer final : public SubwordTokenizer {
 public:
  // `origin` is the file to name in errors (kInput).
  BpeTokenizer(BpeSpec spec, std::string_view origin);

  std::string token_bytes(int32_t id, TextPlace place) const override;
  void save(const std::filesystem::path& folder) const override;
  uint64_t word_times() const override { return 28; }  // measured with 20 MB

  std::span<const Merge> merges() const { return merges_.merges(); }

 private:
  struct Scratch;

  static Scratch& scratch();
  void tokenize_piece(std::string_view piece, uint32_t& code_point,
                      TokenBuffer& out) const override;
  void adjust_spans(const TokenBuffer& tokens, const TokenRange& taken,
                    std::span<Span> spans) const override;
  void tokenize_words(std::string_view text, uint32_t& code_point, TokenBuffer& out) const;
  void append_word(std::string_view word, TokenBuffer& out) const;
  void merge_word(std::string_view word, TokenBuffer& out) const;

  BpeModel model_;  // its merges have moved to merges_
  MergeTable merges_;
  AddedTokenMatcher normalized_matcher_;
  std::array<int32_t, 256> byte_ids_{};
  std::vector<uint32_t>
      token_lengths_;  // in bytes of text, by id; 0 for tokens that no merge makes
  uint32_t cache_owner_ = 0;
};

enum class BpeFamily { kGpt2, kRoberta };

// Tokens and merges in their spelling of the files, such as the trainer's.
struct BpeVocabulary {
  std::vector<std::string> tokens;  // in the order of ids
  std::vector<std::pair<std::string, std::string>> merges;
};

// A tokenizer with the family's special tokens, which the vocabulary must name.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeVocabulary vocabulary, BpeFamily family);

}  // namespace snug
