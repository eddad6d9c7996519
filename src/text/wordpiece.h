// BERT's tokenizer: normalise, split at white space and punctuation, then the longest known pieces
// of each word. Long texts are taken in pieces of a few kilobytes, so that truncation stops the
// work as soon as enough tokens exist.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/normalizer.h"
#include "text/subword_tokenizer.h"

namespace snug {

struct WordPieceModel {
  std::string unk_token = "[UNK]";
  std::string continuing_prefix = "##";
  size_t max_chars_per_word = 100;
  NormalizerOptions normalizer;
};

// Everything a WordPiece tokenizer is, whichever files it came from.
struct WordPieceSpec {
  TokenizerSpec common;
  WordPieceModel model;
};

class WordPieceTokenizer final : public SubwordTokenizer {
 public:
  // `origin` is the file to name in errors (kInput).
  WordPieceTokenizer(WordPieceSpec spec, std::string_view origin);

  std::string token_bytes(int32_t id, TextPlace place) const override;
  void save(const std::filesystem::path& folder) const override;

  const NormalizerOptions& normalizer() const { return model_.normalizer; }

 private:
  struct Scratch;

  static Scratch& scratch();
  void tokenize_piece(std::string_view piece, uint32_t& code_point,
                      TokenBuffer& out) const override;
  void tokenize_normalized(Scratch& work, TokenBuffer& out) const;
  void split_words(size_t begin, size_t end, Scratch& work, TokenBuffer& out) const;
  void append_word(size_t begin, size_t end, Scratch& work, TokenBuffer& out) const;

  WordPieceModel model_;
  Vocabulary::Lead start_, continuation_;
  Normalizer normalizer_;
  AddedTokenMatcher normalized_matcher_;
  int32_t unk_id_ = -1;
  // Decoding: what stands before a piece inside a word, and whether spaces before punctuation go.
  std::string decoder_prefix_;
  bool tidies_ = true;
};

// A tokenizer with BERT's special tokens from a vocabulary that names them, such as the trainer's.
std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(std::vector<std::string> vocabulary,
                                                    const NormalizerOptions& options = {});

}  // namespace snug
