#include "text/bpe.h"

#include <xxhash.h>

#include <algorithm>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/gpt2_split.h"
#include "text/scratch.h"
#include "text/word_cache.h"

namespace snug {
namespace {

struct SpaceCounts {
  uint32_t leading = 0, trailing = 0;
};

// Spaces of a token as the reference trims them: byte symbols of U+0020, or real white space in an
// added token.
SpaceCounts count_spaces(std::string_view token) {
  const CharTable& chars = CharTable::get();
  SpaceCounts counts;
  bool only_spaces = true;
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = next_code_point(token, pos);
    const bool space = c == byte_symbol(' ') || (chars[c] & kCharSpace);
    only_spaces &= space;
    counts.leading += only_spaces;
    counts.trailing = space ? counts.trailing + 1 : 0;
  }
  return counts;
}

// The spans of a word's tokens. A token that holds a part of a character has the whole of it.
class SpanWriter {
 public:
  // `first` is the index of the first code point; where a space was put before it, `prefixed`, that
  // space shares it.
  SpanWriter(uint32_t first, bool prefixed) : first_(first), base_(int64_t{first} - prefixed) {}

  Span advance(std::string_view token) {
    const int64_t begin = base_ + leads_ - (U8_IS_TRAIL(token[0]) ? 1 : 0);
    leads_ += std::count_if(token.begin(), token.end(), [](char c) { return !U8_IS_TRAIL(c); });
    const int64_t end = base_ + leads_;
    return {static_cast<uint32_t>(std::max<int64_t>(begin, first_)),
            static_cast<uint32_t>(std::max<int64_t>(end, first_ + 1))};
  }
  uint32_t next() const { return static_cast<uint32_t>(base_ + leads_); }

 private:
  int64_t first_, base_, leads_ = 0;
};

}  // namespace

struct BpeTokenizer::Scratch {
  std::string prefixed, repaired;
  MergeTable::Workspace merging;
};

BpeTokenizer::BpeTokenizer(BpeSpec spec, std::string_view origin)
    : SubwordTokenizer(std::move(spec.common), origin),
      model_(std::move(spec.model)),
      merges_(std::move(model_.merges)),
      cache_owner_(WordCache::new_owner()) {
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    const std::string symbol = spell_bytes({&text, 1});
    byte_ids_[byte] = vocabulary().find(symbol);
    if (byte_ids_[byte] < 0) {
      fail(ErrorKind::kInput,
           "{}: the vocabulary lacks \"{}\", which is byte 0x{:02X}; byte-level BPE needs all 256",
           origin, symbol, byte);
    }
  }
  token_lengths_.resize(vocabulary().size());
  for (int32_t id : byte_ids_) token_lengths_[id] = 1;
  for (const Merge& merge : merges_.merges()) {
    for (int32_t id : {merge.left, merge.right, merge.merged}) {
      token_lengths_[id] = static_cast<uint32_t>(count_code_points(vocabulary().token(id)));
    }
  }
  normalized_matcher_ =
      make_matcher(Searched::kNormalized, [](const std::string& content) { return content; });
  const std::span<const Merge> all = merges_.merges();
  fingerprint_ = compute_fingerprint(
      {"BPE", XXH3_64bits(all.data(), all.size_bytes()), model_.add_prefix_space, model_.use_regex,
       model_.trim_offsets, model_.trim_spares_prefix, special_ids().pad, special_ids().mask,
       special_ids().bos, special_ids().eos});
}

BpeTokenizer::Scratch& BpeTokenizer::scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::string BpeTokenizer::token_bytes(int32_t id, TextPlace) const {
  if (id < 0 || id >= vocab_size()) return "";
  const std::string_view spelling = token(id);
  return unspell_bytes(spelling).value_or(std::string(spelling));
}

void BpeTokenizer::adjust_spans(const TokenBuffer& tokens, const TokenRange& taken,
                                std::span<Span> spans) const {
  if (!model_.trim_offsets) return;
  auto stripped = tokens.stripped.begin();
  for (size_t i = 0; i < spans.size(); ++i) {
    const size_t place = taken.begin + i;
    while (stripped != tokens.stripped.end() && stripped->place < place) ++stripped;
    const bool strips = stripped != tokens.stripped.end() && stripped->place == place;
    SpaceCounts spaces = count_spaces(strips ? stripped->text : token(tokens.ids[place]));
    auto& [begin, end] = spans[i];
    const bool first = i == 0 || begin == 0;
    if (spaces.leading == 1 && first && model_.trim_spares_prefix) spaces.leading = 0;
    begin = std::min(begin + spaces.leading, end);
    if (end >= spaces.trailing) end = std::max(end - spaces.trailing, begin);
  }
}

void BpeTokenizer::merge_word(std::string_view word, TokenBuffer& out) const {
  const size_t before = out.ids.size();
  out.ids.resize(before + word.size());
  const std::span<int32_t> symbols = std::span(out.ids).subspan(before);
  for (size_t i = 0; i < word.size(); ++i) symbols[i] = byte_ids_[static_cast<uint8_t>(word[i])];
  out.ids.resize(before + merges_.apply(symbols, scratch().merging));
}

void BpeTokenizer::append_word(std::string_view word, TokenBuffer& out) const {
  if (word.size() > WordCache::kMaxWordBytes) {
    out.check_word(word.size(), word_times());
    return merge_word(word, out);
  }
  WordCache::Entry& entry = WordCache::of_this_thread().place(cache_owner_, word);
  if (WordCache::holds(entry, cache_owner_, word)) {
    out.ids.insert(out.ids.end(), entry.ids, entry.ids + entry.tokens);
    return;
  }
  const size_t before = out.ids.size();
  merge_word(word, out);
  WordCache::fill(entry, cache_owner_, word, std::span(out.ids).subspan(before));
}

void BpeTokenizer::tokenize_words(std::string_view text, uint32_t& code_point,
                                  TokenBuffer& out) const {
  Scratch& work = scratch();
  const bool prefixed = model_.add_prefix_space && !text.starts_with(' ');
  if (prefixed) {
    work.prefixed.assign(1, ' ').append(text);
    text = work.prefixed;
  }
  SpanWriter spans(code_point, prefixed);
  const auto append = [&](std::string_view word, bool ill_formed) {
    if (ill_formed) {
      work.repaired = replace_invalid_utf8(word);
      word = work.repaired;
    }
    const size_t before = out.ids.size();
    append_word(word, out);
    if (!out.with_offsets) return;
    for (size_t i = before, pos = 0; i < out.ids.size(); ++i) {
      const size_t length = token_lengths_[out.ids[i]];
      out.spans.push_back(spans.advance(word.substr(pos, length)));
      pos += length;
    }
  };
  if (model_.use_regex) {
    Gpt2Splitter splitter(text);
    for (std::string_view word; !out.full() && !(word = splitter.next()).empty();) {
      append(word, splitter.ill_formed());
    }
  } else {
    append(text, find_invalid_utf8(text) != std::string_view::npos);
  }
  if (out.with_offsets) code_point = spans.next();
}

void BpeTokenizer::tokenize_piece(std::string_view piece, uint32_t& code_point,
                                  TokenBuffer& out) const {
  // There is no normalisation, so the "normalised" text is the same; but its tokens come second.
  split_at_added(normalized_matcher_, piece, code_point, out,
                 [&](std::string_view text) { tokenize_words(text, code_point, out); });
  Scratch& work = scratch();
  release_if_large(work.prefixed);
  release_if_large(work.repaired);
  work.merging.release_if_large();
}

}  // namespace snug
