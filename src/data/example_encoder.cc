#include "data/example_encoder.h"

#include <algorithm>

#include "core/error.h"
#include "text/unicode.h"

namespace snug {
namespace {

Keep keep_of(LongTexts long_texts) {
  switch (long_texts) {
    case LongTexts::kTail:
      return Keep::kTail;
    case LongTexts::kHeadAndTail:
      return Keep::kHeadAndTail;
    default:
      return Keep::kHead;
  }
}

}  // namespace

ExampleEncoder::ExampleEncoder(const Tokenizer& tokenizer, const EncodingOptions& options)
    : tokenizer_(&tokenizer), options_(options) {}

std::span<EncodedExample> ExampleEncoder::encode(const LabelledRow& row) {
  if (options_.labelling == Labelling::kTags) {
    // Byte-level vocabularies know the words inside a text by the space before them: so has the
    // first.
    spaced_.assign(" ").append(row.text);
    encode_windows(spaced_, std::nullopt);
    place_words(row);
  } else if (options_.long_texts == LongTexts::kWindows ||
             options_.labelling == Labelling::kAnswer) {
    encode_windows(row.text, row.text_pair);
  } else {
    encode_whole(row);
  }
  for (EncodedExample& example : std::span(examples_).first(count_)) {
    if (options_.empty_is_end && example.encoding.ids.empty()) stand_in(example.encoding);
    example.labels.assign(row.labels.begin(), row.labels.end());
    if (options_.labelling == Labelling::kAnswer) place_answer(row, example);
  }
  return std::span(examples_).first(count_);
}

// GPT-2's tokenizer gives no token for an empty text, and models read at least one: as in
// generation, the end-of-text token stands for it.
void ExampleEncoder::stand_in(Encoding& encoding) const {
  const int32_t end = tokenizer_->special_ids().eos;
  if (end < 0) {
    fail(ErrorKind::kInput,
         "the text is empty, and the tokenizer has no end-of-text token to stand for it");
  }
  encoding.ids = {end};
  encoding.type_ids = {0};
  encoding.offsets = {{}};
}

void ExampleEncoder::encode_whole(const LabelledRow& row) {
  count_ = 1;
  examples_.resize(std::max<size_t>(examples_.size(), 1));
  Encoding& encoding = examples_[0].encoding;
  EncodeOptions options{.max_length = options_.max_length,
                        .keep = keep_of(options_.long_texts),
                        .word_room = options_.word_room};
  tokenizer_->encode(row.text, row.text_pair, options, encoding);
  was_long_ = false;
  if (encoding.ids.size() < options_.max_length) return;
  // Only a second look can tell a text that fills max_length exactly from one that was cut.
  options = {.max_length = options_.max_length + 1, .word_room = options_.word_room};
  tokenizer_->encode(row.text, row.text_pair, options, longer_);
  was_long_ = longer_.ids.size() > options_.max_length;
}

void ExampleEncoder::encode_windows(std::string_view text, std::optional<std::string_view> pair) {
  std::vector<Encoding> windows = tokenizer_->encode_windows(
      text, pair, options_.stride,
      {.max_length = options_.max_length, .with_offsets = true, .word_room = options_.word_room});
  count_ = windows.size();
  examples_.resize(std::max(examples_.size(), count_));
  for (size_t i = 0; i < count_; ++i) {
    examples_[i].encoding = std::move(windows[i]);
    examples_[i].continues = i + 1 < count_;
  }
  was_long_ = count_ > 1;
}

// A word that several windows have is looked at where its first token has most tokens on its
// shorter side.
void ExampleEncoder::place_words(const LabelledRow& row) {
  places_.assign(row.words.size(), {});
  for (size_t e = 0; e < count_; ++e) {
    EncodedExample& example = examples_[e];
    const size_t tokens = example.encoding.ids.size();
    example.words.assign(tokens, -1);
    example.tags.assign(tokens, -1);
    size_t byte = 0, code_point = 0, word = 0;
    int64_t last_word = -1;
    for (size_t t = 0; t < tokens; ++t) {
      const Span span = example.encoding.offsets[t];
      // Of a byte-level vocabulary the space before a word may be a token without a place of its
      // own: it is the word's first.
      if (span.begin == span.end && tokenizer_->is_special(example.encoding.ids[t])) continue;
      // Behind the space that was put before the text.
      const size_t begin = span.begin > 0 ? span.begin - 1 : 0;
      while (code_point < begin) next_code_point(row.text, byte), ++code_point;
      while (word < row.words.size() && row.words[word].end <= byte) ++word;
      if (word == row.words.size() || int64_t(word) == last_word) continue;
      const bool begins_inside = e > 0 && last_word < 0 && byte > row.words[word].begin;
      last_word = int64_t(word);
      if (begins_inside) continue;  // its first token was in the window before
      const size_t context = std::min(t, tokens - 1 - t) + 1;
      if (context > places_[word].context) places_[word] = {e, t, context};
    }
  }
  for (size_t word = 0; word < places_.size(); ++word) {
    const WordPlace& place = places_[word];
    if (place.context == 0) continue;
    EncodedExample& example = examples_[place.example];
    example.words[place.token] = int32_t(word);
    example.tags[place.token] = row.words[word].tag;
  }
}

// In a window that does not hold all of the answer, and where there is none, the first token stands
// for it.
void ExampleEncoder::place_answer(const LabelledRow& row, EncodedExample& example) const {
  example.labels.assign(2, 0);
  if (!row.answer) return;
  const Encoding& encoding = example.encoding;
  if (encoding.second_begin == encoding.second_end) return;
  const auto offsets = std::span(encoding.offsets);
  size_t first = encoding.second_begin, last = encoding.second_end - 1;
  if (offsets[first].begin > row.answer->begin || offsets[last].end < row.answer->end) return;
  while (first < encoding.second_end && offsets[first].begin <= row.answer->begin) ++first;
  while (last >= encoding.second_begin && offsets[last].end >= row.answer->end) --last;
  example.labels = {int32_t(first) - 1, int32_t(last) + 1};
}

}  // namespace snug
