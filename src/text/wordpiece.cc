#include "text/wordpiece.h"

#include <utility>

#include "core/error.h"
#include "text/scratch.h"
#include "text/word_split.h"

namespace snug {
namespace {

// Small enough for the first-level cache, large enough to amortise.
constexpr size_t kChunkBytes = 2048;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t pos = 0; (pos = text.find(from, pos)) != std::string::npos; pos += to.size()) {
    text.replace(pos, from.size(), to);
  }
}

// The reference's list, in its order, applied to each token with the space before it.
void tidy(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kTidied[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kTidied) replace_all(text, from, to);
}

}  // namespace

struct WordPieceTokenizer::Scratch {
  NormalizedText text;
  Vocabulary::Hashes hashes;
};

WordPieceTokenizer::WordPieceTokenizer(WordPieceSpec spec, std::string_view origin)
    : SubwordTokenizer(std::move(spec.common), origin),
      model_(std::move(spec.model)),
      start_(vocabulary().make_lead("")),
      continuation_(vocabulary().make_lead(model_.continuing_prefix)),
      normalizer_(model_.normalizer),
      unk_id_(vocabulary().find(model_.unk_token)) {
  if (unk_id_ < 0) {
    fail(ErrorKind::kInput, "{}: the unknown token \"{}\" is not in the vocabulary", origin,
         model_.unk_token);
  }
  normalized_matcher_ = make_matcher(Searched::kNormalized, [this](const std::string& content) {
    return normalizer_.normalize(content);
  });
  const Json decoder = this->spec().decoder.is_null() ? Json::object() : this->spec().decoder;
  decoder_prefix_ = decoder.value("prefix", model_.continuing_prefix);
  tidies_ = decoder.value("cleanup", true);
  fingerprint_ =
      compute_fingerprint({model_.unk_token, model_.continuing_prefix, model_.max_chars_per_word,
                           model_.normalizer.clean_text, model_.normalizer.handle_chinese_chars,
                           model_.normalizer.strips_accents(), model_.normalizer.lowercase,
                           special_ids().pad, special_ids().mask});
}

WordPieceTokenizer::Scratch& WordPieceTokenizer::scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::string WordPieceTokenizer::token_bytes(int32_t id, TextPlace place) const {
  if (id < 0 || id >= vocab_size()) return "";
  std::string text(token(id));
  if (place == TextPlace::kInside) {
    if (text.starts_with(decoder_prefix_)) {
      text.erase(0, decoder_prefix_.size());
    } else {
      text.insert(text.begin(), ' ');
    }
  }
  if (tidies_) tidy(text);
  return text;
}

// The greedy longest match. One piece that is not in the vocabulary makes the whole word unknown.
void WordPieceTokenizer::append_word(size_t begin, size_t end, Scratch& work,
                                     TokenBuffer& out) const {
  const std::string_view bytes = work.text.bytes;
  const std::vector<uint32_t>& origin = work.text.origin;
  const auto span = [&](size_t from, size_t to) {
    return out.with_offsets ? Span{origin[from], origin[to - 1] + 1} : Span{};
  };
  const size_t count_before = out.ids.size();
  const bool too_long =
      end - begin > model_.max_chars_per_word &&
      count_code_points(bytes.substr(begin, end - begin)) > model_.max_chars_per_word;
  for (size_t pos = begin; pos < end && !too_long;) {
    const Vocabulary::Lead& lead = pos == begin ? start_ : continuation_;
    const Vocabulary::Match match =
        vocabulary().longest_match(lead, bytes.substr(pos, end - pos), work.hashes);
    if (match.id < 0) {
      out.shrink_to(count_before);
      break;
    }
    out.add(match.id, span(pos, pos + match.bytes));
    pos += match.bytes;
  }
  if (out.ids.size() == count_before) out.add(unk_id_, span(begin, end));
}

void WordPieceTokenizer::split_words(size_t begin, size_t end, Scratch& work,
                                     TokenBuffer& out) const {
  for_each_word(work.text.bytes, begin, end, [&](size_t from, size_t to) {
    append_word(from, to, work, out);
    return !out.full();
  });
}

void WordPieceTokenizer::tokenize_normalized(Scratch& work, TokenBuffer& out) const {
  const NormalizedText& text = work.text;
  size_t done = 0;
  if (!normalized_matcher_.empty()) {
    AddedTokenMatcher::Search search(normalized_matcher_, text.bytes);
    while (const auto match = search.next()) {
      if (done < match->begin) split_words(done, match->begin, work, out);
      const Span span = out.with_offsets
                            ? Span{text.origin[match->begin], text.origin[match->end - 1] + 1}
                            : Span{};
      out.add(match->id, span);
      done = match->end;
    }
  }
  if (done < text.bytes.size()) split_words(done, text.bytes.size(), work, out);
}

void WordPieceTokenizer::tokenize_piece(std::string_view piece, uint32_t& code_point,
                                        TokenBuffer& out) const {
  Scratch& work = scratch();
  NormalizedText& text = work.text;
  text.with_origin = out.with_offsets;
  // An added token of the normalised text may lie anywhere, so it must be searched in one go.
  const size_t chunk = normalized_matcher_.empty() ? kChunkBytes : piece.size();
  for (size_t pos = 0; pos < piece.size() && !out.full();) {
    const size_t end =
        piece.size() - pos <= chunk ? piece.size() : normalizer_.find_cut(piece, pos + chunk);
    text.clear();
    normalizer_.append(piece.substr(pos, end - pos), code_point, text);
    tokenize_normalized(work, out);
    pos = end;
  }
  release_if_large(text.bytes);
  release_if_large(text.origin);
}

}  // namespace snug
