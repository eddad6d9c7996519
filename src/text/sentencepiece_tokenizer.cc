#include "text/sentencepiece_tokenizer.h"

#include <unicode/uchar.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/error.h"
#include "text/rewriter.h"
#include "text/scratch.h"
#include "text/text_cut.h"
#include "text/word_cache.h"

namespace snug {
namespace {

constexpr size_t kChunkBytes = 4096;  // at once to the library
constexpr std::string_view kSpace = "\u2581";

// White space becomes single spaces, and none at the ends.
class RemoveSpace final : public NormalizerStep {
 public:
  void apply(NormalizedText& text) const override {
    const CharTable& chars = CharTable::get();
    Rewriter out(text);
    bool written = false, space = false;
    for (size_t pos = 0; pos < text.bytes.size();) {
      const size_t begin = pos;
      if (chars[next_code_point(text.bytes, pos)] & kCharSpace) {
        space = true;
        out.skip_to(pos);
        continue;
      }
      if (space && written) out.put(U' ', 1);
      space = false;
      written = true;
      out.skip_to(begin);
      out.copy_to(pos);
    }
  }
};

NormalizerSteps make_steps(const SentencePieceTidying& tidying) {
  NormalizerSteps steps;
  if (tidying.remove_space) steps.add(std::make_unique<RemoveSpace>());
  if (tidying.join_quotes) {
    steps.add(make_replace("``", "\""));
    steps.add(make_replace("''", "\""));
  }
  if (!tidying.keep_accents) {
    steps.add(make_decompose_compatibly());
    steps.add(make_strip_accents());
  }
  if (tidying.do_lower_case) steps.add(make_lowercase());
  return steps;
}

std::string without_spaces(std::string_view piece) {
  std::string text;
  for (size_t pos = 0; pos < piece.size();) {
    const size_t found = std::min(piece.find(kSpace, pos), piece.size());
    text.append(piece, pos, found - pos);
    pos = found + kSpace.size();
  }
  return text;
}

bool ends_in_number_comma(std::string_view piece) {
  if (!piece.ends_with(',')) return false;
  char32_t before = 0;
  for (size_t pos = 0; pos + 1 < piece.size();) before = next_code_point(piece, pos);
  return u_isdigit(static_cast<UChar32>(before));
}

// "<0x41>", as the library checked it.
int16_t byte_of(const SentencePieceProto::Piece& piece) {
  int16_t byte = -1;
  if (piece.type == SentencePieceProto::PieceType::kByte && piece.text.size() == 6) {
    std::from_chars(piece.text.data() + 3, piece.text.data() + 5, byte, 16);
  }
  return byte;
}

}  // namespace

struct SentencePieceTokenizer::Scratch {
  NormalizedText text;
  std::vector<SentencePieceModel::Found> found;
};

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceSpec spec, SentencePieceModel model,
                                               std::string_view origin)
    : SubwordTokenizer(std::move(spec.common), origin),
      model_(std::move(model)),
      family_(spec.family),
      tidying_(spec.tidying),
      normalizer_(make_steps(spec.tidying)),
      ids_(std::move(spec.ids)),
      bytes_of_id_(vocab_size(), -1),
      cache_owner_(WordCache::new_owner()) {
  const std::vector<SentencePieceProto::Piece>& pieces = model_.proto().pieces;
  if (ids_.empty()) {
    ids_.resize(pieces.size());
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  SNUG_CHECK(ids_.size() == pieces.size());
  normalized_matcher_ = make_matcher(Searched::kNormalized, [this](const std::string& content) {
    return normalizer_.normalize(content);
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    bytes_of_id_[ids_[i]] = byte_of(pieces[i]);
    if (spec.splits_number_commas && ends_in_number_comma(pieces[i].text)) {
      add_number_comma(static_cast<int32_t>(i));
    }
  }
  remembers_words_ = family_ != SentencePieceFamily::kPlain && model_.allows_cuts();
  const std::string& bytes = model_.bytes();
  fingerprint_ =
      compute_fingerprint({"SentencePiece", XXH3_64bits(bytes.data(), bytes.size()),
                           tidying_.remove_space, tidying_.join_quotes, tidying_.keep_accents,
                           tidying_.do_lower_case, spec.splits_number_commas, special_ids().pad,
                           special_ids().mask, special_ids().bos, special_ids().eos});
}

SentencePieceTokenizer::Scratch& SentencePieceTokenizer::scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// "▁9," is what the number alone is, without the space in front where the piece has none, and
// then the comma.
void SentencePieceTokenizer::add_number_comma(int32_t piece) {
  const std::vector<SentencePieceProto::Piece>& pieces = model_.proto().pieces;
  const std::string& text = pieces[piece].text;
  const auto find = [&](std::string_view wanted) {
    const auto it =
        std::find_if(pieces.begin(), pieces.end(), [&](const auto& p) { return p.text == wanted; });
    return it == pieces.end() ? model_.unknown_id() : int32_t(it - pieces.begin());
  };
  std::vector<SentencePieceModel::Found> found;
  model_.encode(without_spaces(text.substr(0, text.size() - 1)), found);
  std::vector<Part> parts;
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string& number = pieces[found[i].id].text;
    const size_t count = count_code_points(without_spaces(number));
    const bool drops_space = i == 0 && !text.starts_with(kSpace) && number.starts_with(kSpace);
    if (drops_space && number == kSpace) continue;
    parts.push_back({drops_space ? find(number.substr(kSpace.size())) : found[i].id, count});
  }
  parts.push_back({find(","), 1});
  for (Part& part : parts) part.id = ids_[part.id];
  number_commas_.emplace(piece, std::move(parts));
}

std::string SentencePieceTokenizer::token_bytes(int32_t id, TextPlace place) const {
  if (id < 0 || id >= vocab_size()) return "";
  if (bytes_of_id_[id] >= 0) return std::string(1, static_cast<char>(bytes_of_id_[id]));
  const std::string_view text = token(id);
  if (place == TextPlace::kStart) return without_spaces(text);
  std::string result;
  for (size_t pos = 0; pos < text.size();) {
    const size_t found = std::min(text.find(kSpace, pos), text.size());
    result.append(text, pos, found - pos);
    if (found < text.size()) result += ' ';
    pos = found + kSpace.size();
  }
  return result;
}

// Whether normalisation leaves nothing of it but a space.
bool SentencePieceTokenizer::is_gap(char32_t c) const {
  if (c == U'\u2581' || (CharTable::get()[c] & kCharSpace)) return true;
  std::string bytes;
  append_utf8(bytes, c);
  const auto rule = model_.charsmap().longest(bytes);
  return rule && (rule->replacement.empty() || rule->replacement == " ");
}

// The library counts the spaces around a word to it. A piece that is only a space, or a part of
// what one character became, has the character that follows.
Span SentencePieceTokenizer::span_of(const NormalizedText& text, size_t begin, size_t end) const {
  const std::string_view bytes = text.bytes;
  size_t first = begin, last = begin;  // of what is no gap
  bool any = false;
  for (size_t pos = begin; pos < end;) {
    const size_t here = pos;
    if (is_gap(next_code_point(bytes, pos))) continue;
    if (!any) first = here;
    any = true;
    last = pos - 1;
  }
  if (any) return {text.origin[first], text.origin[last] + 1};
  while (end < bytes.size()) {
    const size_t here = end;
    if (is_gap(next_code_point(bytes, end))) continue;
    return {text.origin[here], text.origin[here] + 1};
  }
  if (bytes.empty()) return {};
  const uint32_t after = text.origin.back() + 1;
  return {begin == bytes.size() ? after : text.origin[begin], after};
}

void SentencePieceTokenizer::append_parts(const std::vector<Part>& parts, Span span,
                                          TokenBuffer& out) const {
  size_t total = 0;
  for (const Part& part : parts) total += part.code_points;
  // Where a character of the text is one of the piece, each part has its own.
  const bool apart = total == span.end - span.begin;
  uint32_t begin = span.begin;
  for (const Part& part : parts) {
    const uint32_t size = static_cast<uint32_t>(part.code_points);
    const Span own{begin, begin + std::max(size, 1u)};
    out.add(part.id, apart ? own : span);
    begin += size;
  }
}

// A part of the text through the library.
void SentencePieceTokenizer::encode_part(size_t begin, size_t end, Scratch& work,
                                         TokenBuffer& out) const {
  out.check_word(end - begin, word_times());
  model_.encode(std::string_view(work.text.bytes).substr(begin, end - begin), work.found);
  for (const SentencePieceModel::Found& found : work.found) {
    const Span span =
        out.with_offsets ? span_of(work.text, begin + found.begin, begin + found.end) : Span{};
    const auto number = number_commas_.find(found.id);
    if (number == number_commas_.end()) {
      out.add(ids_[found.id], span);
    } else {
      append_parts(number->second, span, out);
    }
  }
}

size_t SentencePieceTokenizer::letters_of(int32_t id) const {
  const std::string_view text = token(id);
  return text.size() - (text.starts_with(kSpace) ? kSpace.size() : 0);
}

// A word of printable ASCII by itself, from memory where it was seen before. It is remembered when
// its tokens spell it, so that their lengths give the spans.
void SentencePieceTokenizer::append_word(size_t begin, size_t end, Scratch& work,
                                         TokenBuffer& out) const {
  const std::string_view word = std::string_view(work.text.bytes).substr(begin, end - begin);
  WordCache::Entry& entry = WordCache::of_this_thread().place(cache_owner_, word);
  if (!WordCache::holds(entry, cache_owner_, word)) {
    const size_t before = out.ids.size();
    encode_part(begin, end, work, out);
    size_t letters = 0;
    bool known = true;
    for (size_t i = before; i < out.ids.size(); ++i) {
      letters += letters_of(out.ids[i]);
      known &= out.ids[i] != ids_[model_.unknown_id()];
    }
    if (known && letters == word.size()) {
      WordCache::fill(entry, cache_owner_, word, std::span(out.ids).subspan(before));
    }
    return;
  }
  for (size_t i = 0, pos = begin; i < entry.tokens; ++i) {
    const size_t letters = letters_of(entry.ids[i]);
    Span span;
    if (out.with_offsets) {
      span = {work.text.origin[pos], work.text.origin[pos + std::max<size_t>(letters, 1) - 1] + 1};
    }
    out.add(entry.ids[i], span);
    pos += letters;
  }
}

void SentencePieceTokenizer::tokenize_slice(Scratch& work, TokenBuffer& out) const {
  const std::string_view bytes = work.text.bytes;
  const auto printable = [](char c) { return c > ' ' && c < 0x7F; };
  size_t done = 0;
  for (size_t pos = 0; remembers_words_ && pos < bytes.size() && !out.full();) {
    const size_t end = std::min(bytes.find(' ', pos), bytes.size());
    const std::string_view word = bytes.substr(pos, end - pos);
    if (!word.empty() && word.size() <= WordCache::kMaxWordBytes &&
        std::all_of(word.begin(), word.end(), printable)) {
      if (done < pos) encode_part(done, pos, work, out);
      append_word(pos, end, work, out);
      done = end + 1;
    }
    pos = end + 1;
  }
  if (done < bytes.size() && !out.full()) encode_part(done, bytes.size(), work, out);
}

void SentencePieceTokenizer::tokenize_piece(std::string_view piece, uint32_t& code_point,
                                            TokenBuffer& out) const {
  Scratch& work = scratch();
  work.text.with_origin = out.with_offsets;
  const bool cuts =
      model_.allows_cuts() && normalizer_.allows_cuts() && normalized_matcher_.empty();
  for (size_t pos = 0; pos < piece.size() && !out.full();) {
    const bool whole = !cuts || piece.size() - pos <= kChunkBytes;
    const size_t end = whole ? piece.size() : find_plain_space(piece, pos + kChunkBytes);
    assign_text(piece.substr(pos, end - pos), code_point, work.text);
    normalizer_.apply(work.text);
    slice_at_added(normalized_matcher_, work.text, out,
                   [&](bool /*at_start*/) { tokenize_slice(work, out); });
    pos = end;
  }
  release_if_large(work.text.bytes);
  release_if_large(work.text.origin);
  release_if_large(work.found);
}

}  // namespace snug
