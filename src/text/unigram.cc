#include "text/unigram.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "core/error.h"
#include "text/scratch.h"
#include "text/text_cut.h"
#include "text/word_cache.h"

namespace snug {
namespace {

// Small enough for the first-level cache, large enough to amortise.
constexpr size_t kChunkBytes = 2048;
constexpr double kUnknownPenalty = 10;

struct PathNode {
  double score = 0;    // of the best way to here
  uint32_t start = 0;  // of its last piece
  int32_t id = -1;     // of its last piece; -1: no way leads here yet
};

}  // namespace

// A part of the normalised text, with the replacement of a space put before it where `prefixed`.
struct UnigramTokenizer::Word {
  size_t begin = 0, end = 0;
  bool prefixed = false;
};

struct UnigramTokenizer::Scratch {
  NormalizedText text;
  std::string prefixed;  // the word with its prefix
  std::vector<PathNode> path;
  struct Piece {
    size_t begin = 0, end = 0;  // bytes of the word with its prefix
    int32_t id = -1;
  };
  std::vector<Piece> pieces;  // of a word, the last one first
};

UnigramTokenizer::UnigramTokenizer(UnigramSpec spec, std::string_view origin)
    : SubwordTokenizer(std::move(spec.common), origin),
      model_(std::move(spec.model)),
      trie_(vocabulary(), origin),
      cache_owner_(WordCache::new_owner()),
      prefixed_cache_owner_(WordCache::new_owner()) {
  if (!model_.normalizer.is_null()) {
    normalizer_ = NormalizerSteps(JsonFields(model_.normalizer, origin, "normalizer"), origin);
  }
  if (model_.metaspace && !model_.splits_at_spaces) {
    space_replacer_ = make_replace(" ", model_.metaspace->replacement);
  }
  SNUG_CHECK(model_.scores.size() == static_cast<size_t>(vocabulary().size()));
  unknown_score_ = *std::min_element(model_.scores.begin(), model_.scores.end()) - kUnknownPenalty;
  if (model_.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_.push_back(vocabulary().find(fmt::format("<0x{:02X}>", byte)));
    }
  }
  normalized_matcher_ = make_matcher(Searched::kNormalized, [this](const std::string& content) {
    return normalizer_.normalize(content);
  });
  const Json& decoder = this->spec().decoder;
  if (decoder.is_object()) {
    decoder_replacement_ = decoder["replacement"];
    decoder_drops_first_ = decoder.value("prepend_scheme", "always") != "never";
  }
  const Json metaspace = model_.metaspace
                             ? Json{model_.metaspace->replacement, int(model_.metaspace->prepend),
                                    model_.metaspace->split}
                             : Json();
  fingerprint_ = compute_fingerprint(
      {"Unigram", XXH3_64bits(model_.scores.data(), model_.scores.size() * sizeof(double)),
       model_.unk_id.value_or(-1), model_.byte_fallback, model_.splits_at_spaces, metaspace,
       model_.normalizer, special_ids().pad, special_ids().mask, special_ids().bos,
       special_ids().eos});
}

UnigramTokenizer::Scratch& UnigramTokenizer::scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::string UnigramTokenizer::token_bytes(int32_t id, TextPlace place) const {
  if (id < 0 || id >= vocab_size()) return "";
  std::string text(token(id));
  if (decoder_replacement_.empty()) return text;
  const bool drops = place == TextPlace::kStart && decoder_drops_first_;
  std::string result;
  for (size_t pos = 0; pos < text.size();) {
    const size_t found = std::min(text.find(decoder_replacement_, pos), text.size());
    result.append(text, pos, found - pos);
    if (found < text.size() && !drops) result += ' ';
    pos = found + decoder_replacement_.size();
  }
  return result;
}

// Fills work.pieces. A character that is no piece by itself may be passed at the price of the worst
// score and a penalty; of equal ways the first one found stays.
void UnigramTokenizer::find_best_path(std::string_view text, Scratch& work) const {
  std::vector<PathNode>& path = work.path;
  path.assign(text.size() + 1, {});
  for (size_t pos = 0; pos < text.size();) {
    const double so_far = path[pos].score;
    const auto offer = [&](int32_t id, size_t bytes, double score) {
      PathNode& node = path[pos + bytes];
      if (node.id < 0 || so_far + score > node.score) node = {so_far + score, uint32_t(pos), id};
    };
    size_t next = pos;
    next_code_point(text, next);
    bool known = false;
    trie_.for_each_prefix(text.substr(pos), [&](int32_t id, size_t bytes) {
      offer(id, bytes, model_.scores[id]);
      known |= bytes == next - pos;
    });
    if (!known) {
      if (!model_.unk_id) {
        fail(ErrorKind::kInput,
             "a character of the text is not in the vocabulary, and the tokenizer has no unk_id");
      }
      offer(*model_.unk_id, next - pos, unknown_score_);
    }
    pos = next;
  }
  work.pieces.clear();
  for (size_t end = text.size(); end > 0; end = path[end].start) {
    const PathNode& node = path[end];
    const bool unknown = node.id == model_.unk_id;
    if (unknown && !work.pieces.empty() && work.pieces.back().id == model_.unk_id) {
      work.pieces.back().begin = node.start;  // unknown neighbours are one token
    } else {
      work.pieces.push_back({node.start, end, node.id});
    }
  }
}

// With byte_fallback an unknown part is the tokens of its bytes, each with the span of the whole.
void UnigramTokenizer::append_unknown(const Word& word, size_t begin, size_t end, Scratch& work,
                                      TokenBuffer& out) const {
  const size_t prefix = word.prefixed ? model_.metaspace->replacement.size() : 0;
  const auto place = [&](size_t at) { return word.begin + (at < prefix ? 0 : at - prefix); };
  const Span span = out.with_offsets
                        ? Span{work.text.origin[place(begin)], work.text.origin[place(end - 1)] + 1}
                        : Span{};
  const std::string_view text =
      word.prefixed ? std::string_view(work.prefixed).substr(begin, end - begin)
                    : std::string_view(work.text.bytes).substr(word.begin + begin, end - begin);
  const auto known = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)] >= 0; };
  if (model_.byte_fallback && vocabulary().find(text) < 0 &&
      std::all_of(text.begin(), text.end(), known)) {
    for (char byte : text) out.add(byte_ids_[static_cast<uint8_t>(byte)], span);
  } else {
    out.add(*model_.unk_id, span);
  }
}

void UnigramTokenizer::append_word(const Word& word, Scratch& work, TokenBuffer& out) const {
  const std::string_view bare =
      std::string_view(work.text.bytes).substr(word.begin, word.end - word.begin);
  const size_t prefix = word.prefixed ? model_.metaspace->replacement.size() : 0;
  const auto add_piece = [&](int32_t id, size_t begin, size_t end) {
    Span span;
    if (out.with_offsets) {
      const auto place = [&](size_t at) { return word.begin + (at < prefix ? 0 : at - prefix); };
      span = {work.text.origin[place(begin)], work.text.origin[place(end - 1)] + 1};
    }
    out.add(id, span);
  };
  const uint32_t owner = word.prefixed ? prefixed_cache_owner_ : cache_owner_;
  WordCache::Entry* entry = nullptr;
  if (bare.size() <= WordCache::kMaxWordBytes) {
    entry = &WordCache::of_this_thread().place(owner, bare);
    if (WordCache::holds(*entry, owner, bare)) {
      size_t pos = 0;
      for (size_t i = 0; i < entry->tokens; ++i) {
        const size_t bytes = vocabulary().token(entry->ids[i]).size();
        add_piece(entry->ids[i], pos, pos + bytes);
        pos += bytes;
      }
      return;
    }
  }
  out.check_word(bare.size(), word_times());
  std::string_view text = bare;
  if (word.prefixed) {
    work.prefixed.assign(model_.metaspace->replacement).append(bare);
    text = work.prefixed;
  }
  find_best_path(text, work);
  const size_t before = out.ids.size();
  bool all_known = true;
  for (size_t i = work.pieces.size(); i-- > 0;) {
    const Scratch::Piece& piece = work.pieces[i];
    if (piece.id == model_.unk_id) {
      all_known = false;
      append_unknown(word, piece.begin, piece.end, work, out);
    } else {
      add_piece(piece.id, piece.begin, piece.end);
    }
  }
  // The lengths of known pieces can be told from their ids.
  if (entry && all_known) WordCache::fill(*entry, owner, bare, std::span(out.ids).subspan(before));
}

// Each replacement begins a new word, the first of them included. `first` says whether the part
// stands at the beginning of the text.
void UnigramTokenizer::split_at_replacement(size_t begin, size_t end, bool first, Scratch& work,
                                            TokenBuffer& out) const {
  if (begin == end) return;
  if (!model_.metaspace) return append_word({begin, end, false}, work, out);
  const Metaspace& metaspace = *model_.metaspace;
  const std::string& mark = metaspace.replacement;
  const bool wants_prefix = metaspace.prepend == Metaspace::Prepend::kAlways ||
                            (metaspace.prepend == Metaspace::Prepend::kFirst && first);
  const std::string_view bytes = std::string_view(work.text.bytes).substr(0, end);
  bool prefixed = wants_prefix && !bytes.substr(begin).starts_with(mark);
  for (size_t pos = begin; pos < end && !out.full(); prefixed = false) {
    const size_t from = bytes.substr(pos).starts_with(mark) ? pos + mark.size() : pos;
    const size_t next = metaspace.split ? std::min(bytes.find(mark, from), end) : end;
    append_word({pos, next, prefixed}, work, out);
    pos = next;
  }
}

void UnigramTokenizer::split_words(size_t end, bool first, Scratch& work, TokenBuffer& out) const {
  if (!model_.splits_at_spaces) return split_at_replacement(0, end, first, work, out);
  const CharTable& chars = CharTable::get();
  const std::string_view bytes = work.text.bytes;
  size_t start = 0;
  for (size_t pos = 0; pos < end && !out.full();) {
    const size_t here = pos;
    const uint8_t byte = static_cast<uint8_t>(bytes[pos]);
    const char32_t c = byte < 0x80 ? (++pos, char32_t{byte}) : next_code_point(bytes, pos);
    if (!(chars[c] & kCharSpace)) continue;
    split_at_replacement(start, here, first && start == 0, work, out);
    start = pos;
  }
  if (!out.full()) split_at_replacement(start, end, first && start == 0, work, out);
}

// What lies between added tokens, as the whole of work.text.
void UnigramTokenizer::tokenize_slice(Scratch& work, bool first, TokenBuffer& out) const {
  if (space_replacer_) space_replacer_->apply(work.text);
  split_words(work.text.bytes.size(), first, work, out);
}

void UnigramTokenizer::tokenize_piece(std::string_view piece, uint32_t& code_point,
                                      TokenBuffer& out) const {
  Scratch& work = scratch();
  work.text.with_origin = out.with_offsets;
  const bool cuts =
      model_.splits_at_spaces && normalizer_.allows_cuts() && normalized_matcher_.empty();
  bool first = out.ids.empty();  // what is not the first piece follows an added token
  for (size_t pos = 0; pos < piece.size() && !out.full(); first = false) {
    const bool whole = !cuts || piece.size() - pos <= kChunkBytes;
    const size_t end = whole ? piece.size() : find_plain_space(piece, pos + kChunkBytes);
    assign_text(piece.substr(pos, end - pos), code_point, work.text);
    normalizer_.apply(work.text);
    slice_at_added(normalized_matcher_, work.text, out,
                   [&](bool at_start) { tokenize_slice(work, first && at_start, out); });
    pos = end;
  }
  release_if_large(work.text.bytes);
  release_if_large(work.text.origin);
  release_if_large(work.prefixed);
  release_if_large(work.path);
  release_if_large(work.pieces);
}

}  // namespace snug
