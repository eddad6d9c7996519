// BERT's tokenizer: normalise, split at white space and punctuation, then the longest known pieces
// of each word. Long texts are taken in pieces of a few kilobytes, so that truncation stops the
// work as soon as enough tokens exist.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace snug {

// How the special tokens stand around one text, or two.
struct TemplatePiece {
  enum class Kind { kFirst, kSecond, kSpecial };
  Kind kind = Kind::kFirst;
  int32_t type_id = 0;
  std::vector<int32_t> ids;  // of a special
};
using Template = std::vector<TemplatePiece>;

struct SpecialNames {
  std::optional<std::string> pad, unk, cls, sep, mask;
};

// Everything a WordPiece tokenizer is, whichever files it came from.
struct WordPieceSpec {
  std::vector<std::string> tokens;  // the vocabulary in the order of ids
  std::string unk_token = "[UNK]";
  std::string continuing_prefix = "##";
  size_t max_chars_per_word = 100;
  NormalizerOptions normalizer;
  std::vector<AddedToken> added;  // in the order of ids
  Template single, pair;
  Json post_processor, decoder;  // as tokenizer.json has them; already understood
  SpecialNames specials;
  size_t model_max_length = 0;  // 0: not stated
};

class WordPieceTokenizer : public Tokenizer {
 public:
  // `origin` is the file to name in errors (kInput).
  WordPieceTokenizer(WordPieceSpec spec, std::string_view origin);

  void encode(std::string_view text, std::optional<std::string_view> pair,
              const EncodeOptions& options, Encoding& out) const override;
  std::vector<Encoding> encode_windows(std::string_view text, std::optional<std::string_view> pair,
                                       size_t stride, const EncodeOptions& options) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special_ids() const override { return special_ids_; }
  std::string_view token(int32_t id) const override;
  int32_t find(std::string_view token) const override;
  size_t model_max_length() const override { return spec_.model_max_length; }
  uint64_t fingerprint() const override { return fingerprint_; }
  void save(const std::filesystem::path& folder) const override;

  const NormalizerOptions& normalizer() const { return spec_.normalizer; }

 private:
  struct Tokens;
  struct Scratch;
  struct Slice;

  static Scratch& scratch();
  void tokenize(std::string_view text, Scratch& work, Tokens& out) const;
  void tokenize_piece(std::string_view piece, uint32_t& code_point, Scratch& work,
                      Tokens& out) const;
  void tokenize_normalized(Scratch& work, Tokens& out) const;
  void split_words(size_t begin, size_t end, Scratch& work, Tokens& out) const;
  void append_word(size_t begin, size_t end, Scratch& work, Tokens& out) const;
  void assemble(const Slice& first, const Slice* second, const EncodeOptions& options,
                Encoding& out) const;
  size_t room(bool has_pair, const EncodeOptions& options) const;
  uint64_t compute_fingerprint() const;

  WordPieceSpec spec_;  // its tokens have moved to vocabulary_
  Vocabulary vocabulary_;
  Vocabulary::Lead start_, continuation_;
  Normalizer normalizer_;
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  SpecialIds special_ids_;
  int32_t unk_id_ = -1;
  int32_t vocab_size_ = 0;
  uint64_t fingerprint_ = 0;
};

// A tokenizer with BERT's special tokens from a vocabulary that names them, such as the trainer's.
std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(std::vector<std::string> vocabulary,
                                                    const NormalizerOptions& options = {});

// tokenizer_config.json; null where there is none.
struct TokenizerConfig {
  Json json;
  std::string origin = "tokenizer_config.json";
};

// From the files' contents; `origin` names the file in errors (kInput).
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, std::string_view origin,
                                                const TokenizerConfig& config = {});
std::unique_ptr<Tokenizer> parse_vocab(std::string_view text, std::string_view origin,
                                       const TokenizerConfig& config = {});

}  // namespace snug
