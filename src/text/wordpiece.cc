#include "text/wordpiece.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "core/error.h"
#include "text/truncation.h"
#include "text/word_split.h"

namespace snug {
namespace {

constexpr size_t kChunkBytes =
    2048;  // small enough for the first-level cache, large enough to amortise
constexpr size_t kScratchBytesKept = 1u
                                     << 20;  // per thread; a rare huge text does not stay in memory
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

template <class Container>
void release_if_large(Container& container) {
  if (container.capacity() * sizeof(*container.data()) > kScratchBytesKept)
    Container().swap(container);
}

size_t count_specials(const Template& pieces) {
  size_t count = 0;
  for (const TemplatePiece& piece : pieces) count += piece.ids.size();
  return count;
}

// Added tokens beyond the vocabulary must continue its ids, as the reference assigns them.
int32_t check_added_tokens(const std::vector<AddedToken>& added, const Vocabulary& vocabulary,
                           std::string_view origin) {
  int32_t next = vocabulary.size();
  std::unordered_set<std::string_view> seen;
  for (const AddedToken& token : added) {
    if (!seen.insert(token.content).second) {
      fail(ErrorKind::kInput, "{}: added token \"{}\" occurs twice", origin, token.content);
    }
    const int32_t known = vocabulary.find(token.content);
    const int32_t expected = known >= 0 ? known : next++;
    if (token.content.empty())
      fail(ErrorKind::kInput, "{}: added token {} is empty", origin, token.id);
    if (token.id != expected) {
      fail(ErrorKind::kInput, "{}: added token \"{}\" has id {}, expected {} ({})", origin,
           token.content, token.id, expected,
           known >= 0 ? "its id in the vocabulary" : "the next free id");
    }
  }
  return next;
}

void check_template(const Template& pieces, int32_t vocab_size, std::string_view origin) {
  for (const TemplatePiece& piece : pieces) {
    for (int32_t id : piece.ids) {
      if (id >= 0 && id < vocab_size) continue;
      fail(ErrorKind::kInput, "{}: the post-processor inserts id {}, but ids end at {}", origin, id,
           vocab_size - 1);
    }
  }
}

AddedTokenMatcher make_matcher(const std::vector<AddedToken>& added, const Normalizer* normalizer) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> contents;
  for (const AddedToken& token : added) {
    if (token.normalized != (normalizer != nullptr)) continue;
    tokens.push_back(token);
    contents.push_back(normalizer ? normalizer->normalize(token.content) : token.content);
  }
  return AddedTokenMatcher(std::move(tokens), contents);
}

}  // namespace

struct WordPieceTokenizer::Tokens {
  std::vector<int32_t> ids;
  std::vector<Span> spans;  // as many, or none
  bool with_offsets = false;
  size_t enough = kNoLimit;  // work may stop at this many

  void reset(bool offsets, size_t limit) {
    ids.clear();
    spans.clear();
    with_offsets = offsets;
    enough = limit;
  }
  bool full() const { return ids.size() >= enough; }
  void add(int32_t id, Span span) {
    ids.push_back(id);
    if (with_offsets) spans.push_back(span);
  }
  void shrink_to(size_t count) {
    ids.resize(count);
    if (with_offsets) spans.resize(count);
  }
};

struct WordPieceTokenizer::Slice {
  const Tokens& tokens;
  TokenRange range;
};

struct WordPieceTokenizer::Scratch {
  Tokens first, second;
  NormalizedText text;
  Vocabulary::Hashes hashes;

  void release_if_large() {
    for (Tokens* tokens : {&first, &second}) {
      snug::release_if_large(tokens->ids);
      snug::release_if_large(tokens->spans);
    }
    snug::release_if_large(text.bytes);
    snug::release_if_large(text.origin);
  }
};

void Encoding::clear() {
  ids.clear();
  type_ids.clear();
  offsets.clear();
}

WordPieceTokenizer::WordPieceTokenizer(WordPieceSpec spec, std::string_view origin)
    : spec_(std::move(spec)),
      vocabulary_(spec_.tokens),
      start_(vocabulary_.make_lead("")),
      continuation_(vocabulary_.make_lead(spec_.continuing_prefix)),
      normalizer_(spec_.normalizer) {
  if (vocabulary_.duplicate() >= 0) {
    fail(ErrorKind::kInput, "{}: token \"{}\" occurs twice", origin,
         spec_.tokens[vocabulary_.duplicate()]);
  }
  std::vector<std::string>().swap(spec_.tokens);
  unk_id_ = vocabulary_.find(spec_.unk_token);
  if (unk_id_ < 0) {
    fail(ErrorKind::kInput, "{}: the unknown token \"{}\" is not in the vocabulary", origin,
         spec_.unk_token);
  }
  vocab_size_ = check_added_tokens(spec_.added, vocabulary_, origin);
  check_template(spec_.single, vocab_size_, origin);
  check_template(spec_.pair, vocab_size_, origin);
  raw_matcher_ = make_matcher(spec_.added, nullptr);
  normalized_matcher_ = make_matcher(spec_.added, &normalizer_);

  const auto id_of = [&](const std::optional<std::string>& name) {
    return name ? find(*name) : -1;
  };
  const SpecialNames& names = spec_.specials;
  special_ids_ = {id_of(names.pad), id_of(names.unk), id_of(names.cls), id_of(names.sep),
                  id_of(names.mask)};
  fingerprint_ = compute_fingerprint();
}

WordPieceTokenizer::Scratch& WordPieceTokenizer::scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

std::string_view WordPieceTokenizer::token(int32_t id) const {
  SNUG_CHECK(id >= 0 && id < vocab_size_);
  if (id < vocabulary_.size()) return vocabulary_.token(id);
  return spec_.added[spec_.added.size() - (vocab_size_ - id)].content;  // sorted by id, no gaps
}

int32_t WordPieceTokenizer::find(std::string_view token) const {
  const int32_t id = vocabulary_.find(token);
  if (id >= 0) return id;
  for (const AddedToken& added : spec_.added) {
    if (added.content == token) return added.id;
  }
  return -1;
}

uint64_t WordPieceTokenizer::compute_fingerprint() const {
  Json behaviour = {spec_.unk_token,
                    spec_.continuing_prefix,
                    spec_.max_chars_per_word,
                    spec_.normalizer.clean_text,
                    spec_.normalizer.handle_chinese_chars,
                    spec_.normalizer.strips_accents(),
                    spec_.normalizer.lowercase,
                    special_ids_.pad,
                    special_ids_.mask};
  for (const AddedToken& t : spec_.added) {
    behaviour.push_back({t.content, t.id, t.single_word, t.lstrip, t.rstrip, t.normalized});
  }
  for (const Template* pieces : {&spec_.single, &spec_.pair}) {
    for (const TemplatePiece& piece : *pieces)
      behaviour.push_back({int(piece.kind), piece.type_id, piece.ids});
  }
  for (int32_t id = 0; id < vocabulary_.size(); ++id)
    behaviour.push_back(vocabulary_.token(id).size());
  const std::string text = behaviour.dump();
  return XXH3_64bits_withSeed(vocabulary_.pool().data(), vocabulary_.pool().size(),
                              XXH3_64bits(text.data(), text.size()));
}

// The greedy longest match. One piece that is not in the vocabulary makes the whole word unknown.
void WordPieceTokenizer::append_word(size_t begin, size_t end, Scratch& work, Tokens& out) const {
  const std::string_view bytes = work.text.bytes;
  const std::vector<uint32_t>& origin = work.text.origin;
  const auto span = [&](size_t from, size_t to) {
    return out.with_offsets ? Span{origin[from], origin[to - 1] + 1} : Span{};
  };
  const size_t count_before = out.ids.size();
  const bool too_long =
      end - begin > spec_.max_chars_per_word &&
      count_code_points(bytes.substr(begin, end - begin)) > spec_.max_chars_per_word;
  for (size_t pos = begin; pos < end && !too_long;) {
    const Vocabulary::Lead& lead = pos == begin ? start_ : continuation_;
    const Vocabulary::Match match =
        vocabulary_.longest_match(lead, bytes.substr(pos, end - pos), work.hashes);
    if (match.id < 0) {
      out.shrink_to(count_before);
      break;
    }
    out.add(match.id, span(pos, pos + match.bytes));
    pos += match.bytes;
  }
  if (out.ids.size() == count_before) out.add(unk_id_, span(begin, end));
}

void WordPieceTokenizer::split_words(size_t begin, size_t end, Scratch& work, Tokens& out) const {
  for_each_word(work.text.bytes, begin, end, [&](size_t from, size_t to) {
    append_word(from, to, work, out);
    return !out.full();
  });
}

void WordPieceTokenizer::tokenize_normalized(Scratch& work, Tokens& out) const {
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

void WordPieceTokenizer::tokenize_piece(std::string_view piece, uint32_t& code_point, Scratch& work,
                                        Tokens& out) const {
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
}

void WordPieceTokenizer::tokenize(std::string_view text, Scratch& work, Tokens& out) const {
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    fail(ErrorKind::kInput, "a text of {} bytes is longer than the 4 GiB that offsets can count",
         text.size());
  }
  uint32_t code_point = 0;
  size_t done = 0;
  AddedTokenMatcher::Search search(raw_matcher_, text);
  while (!out.full()) {
    const auto match = search.next();
    const size_t piece_end = match ? match->begin : text.size();
    if (done < piece_end)
      tokenize_piece(text.substr(done, piece_end - done), code_point, work, out);
    if (!match || out.full()) return;
    const uint32_t begin = code_point;
    if (out.with_offsets)
      code_point += count_code_points(text.substr(match->begin, match->end - match->begin));
    out.add(match->id, {begin, code_point});
    done = match->end;
  }
}

// How many tokens of the texts themselves may stay.
size_t WordPieceTokenizer::room(bool has_pair, const EncodeOptions& options) const {
  if (options.max_length == 0) return kNoLimit;
  const size_t specials =
      options.special_tokens ? count_specials(has_pair ? spec_.pair : spec_.single) : 0;
  if (options.max_length < specials) {
    fail(ErrorKind::kUsage, "max_length {} has no room for the {} special tokens",
         options.max_length, specials);
  }
  return options.max_length - specials;
}

void WordPieceTokenizer::assemble(const Slice& first, const Slice* second,
                                  const EncodeOptions& options, Encoding& out) const {
  out.clear();
  const Template& pieces = second ? spec_.pair : spec_.single;
  for (const TemplatePiece& piece : pieces) {
    if (piece.kind == TemplatePiece::Kind::kSpecial) {
      if (options.special_tokens) out.ids.insert(out.ids.end(), piece.ids.begin(), piece.ids.end());
      if (options.with_offsets) out.offsets.resize(out.ids.size());
    } else {
      const auto& [tokens, range] = piece.kind == TemplatePiece::Kind::kFirst ? first : *second;
      out.ids.insert(out.ids.end(), tokens.ids.begin() + range.begin,
                     tokens.ids.begin() + range.end);
      if (options.with_offsets) {
        out.offsets.insert(out.offsets.end(), tokens.spans.begin() + range.begin,
                           tokens.spans.begin() + range.end);
      }
    }
    out.type_ids.resize(out.ids.size(), piece.type_id);
  }
}

void WordPieceTokenizer::encode(std::string_view text, std::optional<std::string_view> pair,
                                const EncodeOptions& options, Encoding& out) const {
  Scratch& work = scratch();
  const size_t limit =
      options.truncation == Truncation::kNone ? kNoLimit : room(pair.has_value(), options);
  const auto tokenize_both = [&](size_t enough) {
    work.first.reset(options.with_offsets, enough);
    work.second.reset(options.with_offsets, enough);
    tokenize(text, work, work.first);
    if (pair) tokenize(*pair, work, work.second);
  };
  // One more than fits is enough to know that a text is too long; its end is then never tokenized.
  tokenize_both(limit == kNoLimit ? kNoLimit : limit + 1);
  // Only when both are too long and an odd token remains do their true lengths matter: the longer
  // text gets it.
  if (options.truncation == Truncation::kLongestFirst && limit % 2 == 1 && work.first.full() &&
      work.second.full()) {
    tokenize_both(kNoLimit);
  }
  TextLengths lengths{work.first.ids.size(), std::nullopt};
  if (pair) lengths.second = work.second.ids.size();
  const TextLengths kept = truncate(lengths, limit, options.truncation);

  const Slice second{work.second, {0, kept.second.value_or(0)}};
  assemble({work.first, {0, kept.first}}, pair ? &second : nullptr, options, out);
  work.release_if_large();
}

std::vector<Encoding> WordPieceTokenizer::encode_windows(std::string_view text,
                                                         std::optional<std::string_view> pair,
                                                         size_t stride,
                                                         const EncodeOptions& options) const {
  const size_t limit = room(pair.has_value(), options);
  if (stride >= limit) {
    fail(ErrorKind::kUsage, "a stride of {} needs windows of more tokens, but max_length leaves {}",
         stride, limit);
  }
  Scratch& work = scratch();
  work.first.reset(options.with_offsets, kNoLimit);
  work.second.reset(options.with_offsets, kNoLimit);
  tokenize(text, work, work.first);
  if (pair) tokenize(*pair, work, work.second);

  const Tokens& cut = pair ? work.second : work.first;
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
