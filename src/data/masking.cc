#include "data/masking.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/philox.h"

namespace snug {
namespace {

constexpr uint32_t kChoose = 0x4d41534b, kReplace = 0x4d41534c;

std::array<uint32_t, 4> draw(uint64_t seed, uint64_t sample, size_t position, uint32_t purpose) {
  return philox({uint32_t(sample), uint32_t(sample >> 32), uint32_t(position), purpose},
                {uint32_t(seed), uint32_t(seed >> 32)});
}

// WordPiece marks what continues a word, byte-level BPE what begins one.
bool continues_word(const Tokenizer& tokenizer, int32_t id, bool marks_continuation) {
  const std::string_view token = tokenizer.token(id);
  return marks_continuation ? token.starts_with("##") : !token.starts_with("\u0120");
}

}  // namespace

MaskTable::MaskTable(const Tokenizer& tokenizer, double share, bool whole_words)
    : share(share),
      whole_words(whole_words),
      mask_id(tokenizer.special_ids().mask),
      vocabulary(tokenizer.vocab_size()) {
  if (mask_id < 0) {
    throw Error(ErrorKind::kInput, "the tokenizer has no mask token",
                "--task mlm needs one: bert and roberta have it");
  }
  special.resize(size_t(vocabulary));
  const SpecialIds& ids = tokenizer.special_ids();
  for (const int32_t id : {ids.pad, ids.unk, ids.cls, ids.sep, ids.mask, ids.bos, ids.eos}) {
    if (id >= 0) special[size_t(id)] = true;
  }
  if (ids.unk >= 0) special[size_t(ids.unk)] = false;  // a word like any other
  if (!whole_words) return;
  bool marks_continuation = false;
  for (int32_t id = 0; id < vocabulary; ++id) {
    marks_continuation |= tokenizer.token(id).starts_with("##");
  }
  continuing.resize(size_t(vocabulary));
  for (int32_t id = 0; id < vocabulary; ++id) {
    continuing[size_t(id)] = continues_word(tokenizer, id, marks_continuation);
  }
}

Masker::Masker(std::shared_ptr<const MaskTable> table, uint64_t seed, size_t longest_text)
    : table_(std::move(table)), seed_(seed) {
  words_.reserve(longest_text);
}

size_t Masker::most_chosen(size_t tokens, double share) {
  return std::min(tokens, std::max<size_t>(1, size_t(std::lround(share * double(tokens)))));
}

void Masker::find_words(uint64_t sample, std::span<const int32_t> ids) {
  words_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (table_->special[size_t(ids[i])]) continue;
    const bool joins = table_->whole_words && table_->continuing[size_t(ids[i])] &&
                       !words_.empty() && words_.back().end == i;
    if (joins) {
      words_.back().end = uint32_t(i + 1);
    } else {
      words_.push_back({draw(seed_, sample, i, kChoose)[0], uint32_t(i), uint32_t(i + 1)});
    }
  }
}

size_t Masker::apply(uint64_t sample, std::span<int32_t> ids, int32_t* places, int32_t* originals) {
  find_words(sample, ids);
  size_t candidates = 0;
  for (const Word& word : words_) candidates += word.end - word.begin;
  if (candidates == 0) return 0;
  std::ranges::sort(words_, [](const Word& a, const Word& b) {
    return std::pair(a.key, a.begin) < std::pair(b.key, b.begin);
  });
  const size_t most = most_chosen(candidates, table_->share);
  size_t count = 0;
  for (const Word& word : words_) {
    if (count + (word.end - word.begin) > most) continue;
    for (uint32_t i = word.begin; i < word.end; ++i) places[count++] = int32_t(i);
  }
  std::sort(places, places + count);
  for (size_t i = 0; i < count; ++i) {
    int32_t& id = ids[size_t(places[i])];
    originals[i] = id;
    const auto words = draw(seed_, sample, size_t(places[i]), kReplace);
    const double kind = double(words[0]) * 0x1p-32;
    if (kind < 0.8) {
      id = table_->mask_id;
    } else if (kind < 0.9) {
      id = int32_t(uint64_t(words[1]) * uint64_t(table_->vocabulary) >> 32);
    }
  }
  return count;
}

}  // namespace snug
