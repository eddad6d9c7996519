#include "text/wordpiece_trainer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "text/pair_merger.h"
#include "text/word_split.h"

namespace snug {
namespace {

constexpr size_t kChunkBytes = 64 << 10;
constexpr std::string_view kContinuation = "##";
constexpr std::array<std::string_view, 5> kSpecials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]",
                                                       "[MASK]"};

// The word as its characters: "h", "##o", "##w".
std::vector<std::string> spell(std::string_view word) {
  std::vector<std::string> symbols;
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    next_code_point(word, pos);
    symbols.emplace_back(begin == 0 ? "" : kContinuation);
    symbols.back() += word.substr(begin, pos - begin);
  }
  return symbols;
}

// The most frequent symbols, sorted.
std::vector<std::string> choose_alphabet(const std::vector<WordCount>& words, size_t limit) {
  std::unordered_map<std::string, uint64_t> counts;
  for (const auto& [word, count] : words) {
    for (const std::string& symbol : spell(word)) counts[symbol] += count;
  }
  std::vector<WordCount> ranked(counts.begin(), counts.end());
  std::sort(ranked.begin(), ranked.end(), ranks_before);
  ranked.resize(std::min(ranked.size(), limit));
  std::vector<std::string> alphabet;
  for (const auto& [symbol, count] : ranked) alphabet.emplace_back(symbol);
  std::sort(alphabet.begin(), alphabet.end());
  return alphabet;
}

}  // namespace

WordPieceTrainer::WordPieceTrainer(const WordPieceTrainerOptions& options)
    : options_(options), normalizer_(options.normalizer), counts_(options.max_distinct_words) {}

void WordPieceTrainer::feed(std::string_view text) {
  uint32_t code_point = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = text.size() - pos <= kChunkBytes
                           ? text.size()
                           : normalizer_.find_cut(text, pos + kChunkBytes);
    scratch_.clear();
    normalizer_.append(text.substr(pos, end - pos), code_point, scratch_);
    const std::string_view bytes = scratch_.bytes;
    for_each_word(bytes, 0, bytes.size(), [&](size_t from, size_t to) {
      counts_.add(bytes.substr(from, to - from));
      return true;
    });
    pos = end;
  }
}

std::vector<std::string> WordPieceTrainer::train(size_t vocab_size) const {
  if (counts_.size() == 0) fail(ErrorKind::kInput, "no words to learn a vocabulary from");
  if (vocab_size <= kSpecials.size()) {
    fail(ErrorKind::kUsage, "a vocabulary of {} tokens has no room beside the {} special ones",
         vocab_size, kSpecials.size());
  }
  const std::vector<WordCount> words = counts_.ranked();
  const size_t room = vocab_size - kSpecials.size();
  PairMerger merger([](const std::string& left, const std::string& right) {
    return left + right.substr(kContinuation.size());
  });
  for (const std::string& symbol : choose_alphabet(words, std::min(options_.max_alphabet, room))) {
    merger.symbol(symbol);
  }
  const size_t alphabet = merger.texts().size();
  const std::unordered_set<std::string> letters(merger.texts().begin(), merger.texts().end());
  for (const auto& [text, count] : words) {
    PairMerger::Word word{{}, count};
    for (const std::string& symbol : spell(text)) {
      if (letters.contains(symbol)) word.symbols.push_back(merger.symbol(symbol));
    }
    const bool complete = word.symbols.size() == count_code_points(text);
    if (complete) merger.add_word(std::move(word));
  }
  SNUG_CHECK(merger.texts().size() == alphabet);
  merger.run(room, options_.min_pair_count);

  std::vector<std::string> vocabulary(kSpecials.begin(), kSpecials.end());
  vocabulary.insert(vocabulary.end(), merger.texts().begin(), merger.texts().end());
  return vocabulary;
}

}  // namespace snug
