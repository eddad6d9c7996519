// A tokenizer from a SentencePiece model file: the library divides the text; around it stands what
// the families of transformers add. ALBERT and XLNet tidy the text before, and take the comma off
// numbers after; XLM-RoBERTa counts its ids differently; T5 has tokens of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/normalizer_steps.h"
#include "text/sentencepiece_model.h"
#include "text/subword_tokenizer.h"

namespace snug {

enum class SentencePieceFamily { kPlain, kAlbert, kXlnet, kXlmRoberta, kT5 };

// What ALBERT and XLNet do to a text before the model sees it; the other families do nothing.
struct SentencePieceTidying {
  bool remove_space = false;  // white space becomes single spaces between words
  bool join_quotes = false;   // `` and '' become "
  bool keep_accents = true;
  bool do_lower_case = false;
};

struct SentencePieceSpec {
  TokenizerSpec common;
  SentencePieceFamily family = SentencePieceFamily::kPlain;
  SentencePieceTidying tidying;
  bool splits_number_commas = false;  // "9," is "9" and ","
  std::vector<int32_t> ids;           // of the model's pieces; empty: the same
};

class SentencePieceTokenizer final : public SubwordTokenizer {
 public:
  // `origin` is the file to name in errors (kInput).
  SentencePieceTokenizer(SentencePieceSpec spec, SentencePieceModel model, std::string_view origin);

  std::string token_bytes(int32_t id, TextPlace place) const override;
  void save(const std::filesystem::path& folder) const override;
  uint64_t word_times() const override { return 290; }  // measured with 20 MB

 private:
  struct Scratch;
  // What stands for a piece that ends in a number's comma.
  struct Part {
    int32_t id = -1;
    size_t code_points = 0;  // of the piece, "▁" not counted
  };

  static Scratch& scratch();
  void tokenize_piece(std::string_view piece, uint32_t& code_point,
                      TokenBuffer& out) const override;
  void tokenize_slice(Scratch& work, TokenBuffer& out) const;
  void encode_part(size_t begin, size_t end, Scratch& work, TokenBuffer& out) const;
  void append_word(size_t begin, size_t end, Scratch& work, TokenBuffer& out) const;
  size_t letters_of(int32_t id) const;  // bytes of its token without the space
  void append_parts(const std::vector<Part>& parts, Span span, TokenBuffer& out) const;
  Span span_of(const NormalizedText& text, size_t begin, size_t end) const;
  bool is_gap(char32_t c) const;
  void add_number_comma(int32_t piece);

  SentencePieceModel model_;
  SentencePieceFamily family_;
  SentencePieceTidying tidying_;
  NormalizerSteps normalizer_;
  AddedTokenMatcher normalized_matcher_;
  std::vector<int32_t> ids_;          // by piece of the model
  std::vector<int16_t> bytes_of_id_;  // the byte that a token stands for, or -1
  std::unordered_map<int32_t, std::vector<Part>> number_commas_;  // by piece of the model
  // Families take their texts word by word, as the fast tokenizers of transformers do. A model of
  // no family gets them whole, as the library's own programs do.
  bool remembers_words_ = false;
  uint32_t cache_owner_ = 0;
};

}  // namespace snug
