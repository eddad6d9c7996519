#include "text/subword_tokenizer.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "core/error.h"
#include "core/progress.h"
#include "text/scratch.h"

namespace snug {
namespace {

constexpr size_t kNoLimit = TokenBuffer::kNoLimit;

}  // namespace

void Encoding::clear() {
  ids.clear();
  type_ids.clear();
  offsets.clear();
  second_begin = second_end = 0;
}

void TokenBuffer::reset(const EncodeOptions& options, size_t limit) {
  ids.clear();
  spans.clear();
  stripped.clear();
  with_offsets = options.with_offsets;
  enough = limit;
  word_room = options.word_room;
}

void TokenBuffer::check_word(size_t bytes, uint64_t times) const {
  constexpr uint64_t kReading = 23;  // times its bytes, at most, for the text that it stands in
  const uint64_t needed = bytes * (times + kReading);
  if (needed <= word_room) return;
  throw Error(ErrorKind::kBudget,
              fmt::format("has {} bytes without white space, which take {} to be tokenized; of the "
                          "memory {} are left",
                          bytes, format_bytes(needed), format_bytes(word_room)),
              "give more with --memory, or leave the text out");
}

void TokenBuffer::keep(size_t count, Keep which) {
  const size_t excess = ids.size() - count, first = which == Keep::kTail ? 0 : count - count / 2;
  ids.erase(ids.begin() + ptrdiff_t(first), ids.begin() + ptrdiff_t(first + excess));
}

void TokenBuffer::shrink_to(size_t count) {
  ids.resize(count);
  if (with_offsets) spans.resize(count);
}

struct SubwordTokenizer::Slice {
  const TokenBuffer& tokens;
  TokenRange range;
};

struct SubwordTokenizer::Scratch {
  TokenBuffer first, second;

  void release_if_large() {
    for (TokenBuffer* tokens : {&first, &second}) {
      snug::release_if_large(tokens->ids);
      snug::release_if_large(tokens->spans);
    }
  }
};

SubwordTokenizer::SubwordTokenizer(TokenizerSpec spec, std::string_view origin)
    : spec_(std::move(spec)), vocabulary_(spec_.tokens) {
  if (vocabulary_.duplicate() >= 0) {
    fail(ErrorKind::kInput, "{}: token \"{}\" occurs twice", origin,
         spec_.tokens[vocabulary_.duplicate()]);
  }
  std::vector<std::string>().swap(spec_.tokens);
  vocab_size_ = check_added_tokens(spec_.added, vocabulary_, origin);
  check_templates(spec_.templates, vocab_size_, origin);
  raw_matcher_ = make_matcher(Searched::kRaw, [](const std::string& content) { return content; });

  const auto id_of = [&](const std::optional<std::string>& name) {
    return name ? find(*name) : -1;
  };
  const SpecialNames& names = spec_.specials;
  special_ids_ = {.pad = id_of(names.pad),
                  .unk = id_of(names.unk),
                  .cls = id_of(names.cls),
                  .sep = id_of(names.sep),
                  .mask = id_of(names.mask),
                  .bos = id_of(names.bos),
                  .eos = id_of(names.eos)};
}

SubwordTokenizer::Scratch& SubwordTokenizer::scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::string_view SubwordTokenizer::token(int32_t id) const {
  SNUG_CHECK(id >= 0 && id < vocab_size_);
  if (id < vocabulary_.size()) return vocabulary_.token(id);
  return spec_.added[spec_.added.size() - (vocab_size_ - id)].content;  // sorted by id, no gaps
}

int32_t SubwordTokenizer::find(std::string_view token) const {
  const int32_t id = vocabulary_.find(token);
  if (id >= 0) return id;
  for (const AddedToken& added : spec_.added) {
    if (added.content == token) return added.id;
  }
  return -1;
}

bool SubwordTokenizer::is_special(int32_t id) const {
  const auto it = std::lower_bound(spec_.added.begin(), spec_.added.end(), id,
                                   [](const AddedToken& token, int32_t i) { return token.id < i; });
  return it != spec_.added.end() && it->id == id && it->special;
}

uint64_t SubwordTokenizer::compute_fingerprint(Json behaviour) const {
  for (const AddedToken& t : spec_.added) {
    behaviour.push_back({t.content, t.id, t.single_word, t.lstrip, t.rstrip, t.normalized});
  }
  for (const Template* pieces : {&spec_.templates.single, &spec_.templates.pair}) {
    for (const TemplatePiece& piece : *pieces) {
      behaviour.push_back({int(piece.kind), piece.type_id, piece.ids});
    }
  }
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    behaviour.push_back(vocabulary_.token(id).size());
  }
  const std::string text = behaviour.dump();
  return XXH3_64bits_withSeed(vocabulary_.pool().data(), vocabulary_.pool().size(),
                              XXH3_64bits(text.data(), text.size()));
}

void SubwordTokenizer::tokenize(std::string_view text, TokenBuffer& out) const {
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    fail(ErrorKind::kInput, "a text of {} bytes is longer than the 4 GiB that offsets can count",
         text.size());
  }
  uint32_t code_point = 0;
  split_at_added(raw_matcher_, text, code_point, out,
                 [&](std::string_view piece) { tokenize_piece(piece, code_point, out); });
}

// How many tokens of the texts themselves may stay.
size_t SubwordTokenizer::room(bool has_pair, const EncodeOptions& options) const {
  if (options.max_length == 0) return kNoLimit;
  const Template& pieces = has_pair ? spec_.templates.pair : spec_.templates.single;
  const size_t specials = options.special_tokens ? count_specials(pieces) : 0;
  if (options.max_length < specials) {
    fail(ErrorKind::kUsage, "max_length {} has no room for the {} special tokens",
         options.max_length, specials);
  }
  return options.max_length - specials;
}

void SubwordTokenizer::assemble(const Slice& first, const Slice* second,
                                const EncodeOptions& options, Encoding& out) const {
  out.clear();
  const Template& pieces = second ? spec_.templates.pair : spec_.templates.single;
  for (const TemplatePiece& piece : pieces) {
    if (piece.kind == TemplatePiece::Kind::kSpecial) {
      if (options.special_tokens) out.ids.insert(out.ids.end(), piece.ids.begin(), piece.ids.end());
      if (options.with_offsets) out.offsets.resize(out.ids.size());
    } else {
      const auto& [tokens, range] = piece.kind == TemplatePiece::Kind::kFirst ? first : *second;
      if (piece.kind == TemplatePiece::Kind::kSecond) {
        out.second_begin = out.ids.size();
        out.second_end = out.second_begin + (range.end - range.begin);
      }
      out.ids.insert(out.ids.end(), tokens.ids.begin() + range.begin,
                     tokens.ids.begin() + range.end);
      if (options.with_offsets) {
        out.offsets.insert(out.offsets.end(), tokens.spans.begin() + range.begin,
                           tokens.spans.begin() + range.end);
        adjust_spans(tokens, range, std::span(out.offsets).last(range.end - range.begin));
      }
    }
    out.type_ids.resize(out.ids.size(), piece.type_id);
  }
}

void SubwordTokenizer::encode(std::string_view text, std::optional<std::string_view> pair,
                              const EncodeOptions& options, Encoding& out) const {
  Scratch& work = scratch();
  const size_t limit =
      options.truncation == Truncation::kNone ? kNoLimit : room(pair.has_value(), options);
  SNUG_CHECK(options.keep == Keep::kHead || !options.with_offsets);
  const auto tokenize_both = [&](size_t enough) {
    work.first.reset(options, enough);
    work.second.reset(options, enough);
    tokenize(text, work.first);
    if (pair) tokenize(*pair, work.second);
  };
  // One more than fits is enough to know that a text is too long; its end is then never tokenized.
  tokenize_both(limit == kNoLimit || options.keep != Keep::kHead ? kNoLimit : limit + 1);
  // Only when both are too long and an odd token remains do their true lengths matter: the longer
  // text gets it.
  if (options.truncation == Truncation::kLongestFirst && limit % 2 == 1 && work.first.full() &&
      work.second.full()) {
    tokenize_both(kNoLimit);
  }
  TextLengths lengths{work.first.ids.size(), std::nullopt};
  if (pair) lengths.second = work.second.ids.size();
  const TextLengths kept = truncate(lengths, limit, options.truncation);
  if (options.keep != Keep::kHead) {
    work.first.keep(kept.first, options.keep);
    if (pair) work.second.keep(*kept.second, options.keep);
  }

  const Slice second{work.second, {0, kept.second.value_or(0)}};
  assemble({work.first, {0, kept.first}}, pair ? &second : nullptr, options, out);
  work.release_if_large();
}

std::vector<Encoding> SubwordTokenizer::encode_windows(std::string_view text,
                                                       std::optional<std::string_view> pair,
                                                       size_t stride,
                                                       const EncodeOptions& options) const {
  const size_t limit = room(pair.has_value(), options);
  if (stride >= limit) {
    fail(ErrorKind::kUsage, "a stride of {} needs windows of more tokens, but max_length leaves {}",
         stride, limit);
  }
  Scratch& work = scratch();
  work.first.reset(options, kNoLimit);
  work.second.reset(options, kNoLimit);
  tokenize(text, work.first);
  if (pair) tokenize(*pair, work.second);

  const TokenBuffer& cut = pair ? work.second : work.first;
  const size_t repeated = pair ? work.first.ids.size() : 0;
  const bool fits = repeated + cut.ids.size() <= limit;
  if (!fits && (repeated >= limit || stride >= limit - repeated)) {
    fail(ErrorKind::kInput,
         "the first text has {} tokens, and max_length leaves {} for both: too few for windows of "
         "the second that share {}",
         repeated, limit, stride);
  }
  const Slice whole_first{work.first, {0, work.first.ids.size()}};
  std::vector<Encoding> windows;
  for (const TokenRange& range : window_ranges(cut.ids.size(), limit - repeated, stride)) {
    const Slice slice{cut, range};
    assemble(pair ? whole_first : slice, pair ? &slice : nullptr, options, windows.emplace_back());
  }
  work.release_if_large();
  return windows;
}

}  // namespace snug
