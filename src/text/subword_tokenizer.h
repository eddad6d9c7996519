// What the families share: the vocabulary with its added tokens, the special tokens around texts,
// truncation and windows. A family splits the text between added tokens into tokens, and the work
// stops as soon as truncation has enough of them.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/tokenizer.h"
#include "text/truncation.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace snug {

struct SpecialNames {
  std::optional<std::string> pad, unk, cls, sep, mask, bos, eos;
};

// What a tokenizer of any family has, whichever files it came from.
struct TokenizerSpec {
  std::vector<std::string> tokens;  // the vocabulary in the order of ids
  std::vector<AddedToken> added;    // in the order of ids
  Templates templates;
  Json post_processor, decoder;  // as tokenizer.json has them; already understood
  SpecialNames specials;
  size_t model_max_length = 0;  // 0: not stated
};

// The tokens of one text as they are found.
struct TokenBuffer {
  static constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

  std::vector<int32_t> ids;
  std::vector<Span> spans;  // as many, or none
  // Added tokens that took up spaces, in order, with the text they stand for; with offsets only.
  struct Stripped {
    size_t place;  // in ids
    std::string text;
  };
  std::vector<Stripped> stripped;
  bool with_offsets = false;
  size_t enough = kNoLimit;                                   // work may stop at this many
  uint64_t word_room = std::numeric_limits<uint64_t>::max();  // see EncodeOptions

  void reset(const EncodeOptions& options, size_t limit);
  // Refuses a word of so many bytes that takes so many `times` as many to be tokenized, where there
  // is no room for that.
  void check_word(size_t bytes, uint64_t times) const;
  bool full() const { return ids.size() >= enough; }
  void add(int32_t id, Span span) {
    ids.push_back(id);
    if (with_offsets) spans.push_back(span);
  }
  void shrink_to(size_t count);
  // So many of the ids stay; not for buffers with spans, and not kHead.
  void keep(size_t count, Keep which);
};

class SubwordTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::optional<std::string_view> pair,
              const EncodeOptions& options, Encoding& out) const override;
  std::vector<Encoding> encode_windows(std::string_view text, std::optional<std::string_view> pair,
                                       size_t stride, const EncodeOptions& options) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special_ids() const override { return special_ids_; }
  bool is_special(int32_t id) const override;
  std::string_view token(int32_t id) const override;
  int32_t find(std::string_view token) const override;
  size_t model_max_length() const override { return spec_.model_max_length; }
  uint64_t fingerprint() const override { return fingerprint_; }

 protected:
  // `origin` is the file to name in errors (kInput).
  SubwordTokenizer(TokenizerSpec spec, std::string_view origin);

  // Appends the tokens of a piece of text that has no added token of the raw text in it, until
  // there are enough. `code_point` is the index of its first code point; where offsets are wanted
  // it moves past the last.
  virtual void tokenize_piece(std::string_view piece, uint32_t& code_point,
                              TokenBuffer& out) const = 0;
  // The last word on the offsets of the tokens that an encoding takes of a text.
  virtual void adjust_spans(const TokenBuffer& /*tokens*/, const TokenRange& /*taken*/,
                            std::span<Span> /*spans*/) const {}

  // The added tokens that are searched there; `spell` says how one looks in that text.
  enum class Searched { kRaw, kNormalized };
  template <class Spell>
  AddedTokenMatcher make_matcher(Searched searched, Spell spell) const;
  // Adds the matches to `out` and calls piece(text) for what is between them.
  template <class Piece>
  static void split_at_added(const AddedTokenMatcher& matcher, std::string_view text,
                             uint32_t& code_point, TokenBuffer& out, Piece piece);
  // The same in a normalised text: part(at_start) finds what is between them in `text`, with
  // at_start where that was its beginning.
  template <class Part>
  static void slice_at_added(const AddedTokenMatcher& matcher, NormalizedText& text,
                             TokenBuffer& out, Part part);
  // `behaviour` is a list of what the family's settings are.
  uint64_t compute_fingerprint(Json behaviour) const;

  const TokenizerSpec& spec() const { return spec_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }

  uint64_t fingerprint_ = 0;  // set by the family's constructor

 private:
  struct Slice;
  struct Scratch;

  static Scratch& scratch();
  void tokenize(std::string_view text, TokenBuffer& out) const;
  void assemble(const Slice& first, const Slice* second, const EncodeOptions& options,
                Encoding& out) const;
  size_t room(bool has_pair, const EncodeOptions& options) const;

  TokenizerSpec spec_;  // its tokens have moved to vocabulary_
  Vocabulary vocabulary_;
  AddedTokenMatcher raw_matcher_;
  SpecialIds special_ids_;
  int32_t vocab_size_ = 0;
};

template <class Spell>
AddedTokenMatcher SubwordTokenizer::make_matcher(Searched searched, Spell spell) const {
  std::vector<AddedToken> tokens;
  std::vector<std::string> contents;
  for (const AddedToken& token : spec_.added) {
    if (token.normalized != (searched == Searched::kNormalized)) continue;
    tokens.push_back(token);
    contents.push_back(spell(token.content));
  }
  return AddedTokenMatcher(std::move(tokens), contents);
}

template <class Piece>
void SubwordTokenizer::split_at_added(const AddedTokenMatcher& matcher, std::string_view text,
                                      uint32_t& code_point, TokenBuffer& out, Piece piece) {
  size_t done = 0;
  AddedTokenMatcher::Search search(matcher, text);
  while (!out.full()) {
    const auto match = search.next();
    const size_t piece_end = match ? match->begin : text.size();
    if (done < piece_end) piece(text.substr(done, piece_end - done));
    if (!match || out.full()) return;
    Span span;
    if (out.with_offsets) {
      const std::string_view matched = text.substr(match->begin, match->end - match->begin);
      const size_t overlap = done - std::min(match->begin, done);  // with the spaces last taken
      span.begin =
          code_point - static_cast<uint32_t>(count_code_points(matched.substr(0, overlap)));
      span.end = span.begin + static_cast<uint32_t>(count_code_points(matched));
      code_point = span.end;
      if (match->stripped) out.stripped.push_back({out.ids.size(), std::string(matched)});
    }
    out.add(match->id, span);
    done = match->end;
  }
}

template <class Part>
void SubwordTokenizer::slice_at_added(const AddedTokenMatcher& matcher, NormalizedText& text,
                                      TokenBuffer& out, Part part) {
  if (matcher.empty()) return part(true);
  const NormalizedText whole = text;
  const auto between = [&](size_t begin, size_t end) {
    if (begin == end) return;
    text.bytes.assign(whole.bytes, begin, end - begin);
    if (whole.with_origin) {
      text.origin.assign(whole.origin.begin() + begin, whole.origin.begin() + end);
    }
    part(begin == 0);
  };
  AddedTokenMatcher::Search search(matcher, whole.bytes);
  size_t done = 0;
  while (const auto match = search.next()) {
    between(done, std::max(match->begin, done));
    const Span span = out.with_offsets
                          ? Span{whole.origin[match->begin], whole.origin[match->end - 1] + 1}
                          : Span{};
    out.add(match->id, span);
    done = match->end;
  }
  between(done, whole.bytes.size());
}

}  // namespace snug
