#include "text/wordpiece_trainer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "core/error.h"
#include "core/progress.h"
#include "text/word_split.h"

namespace snug {
namespace {

constexpr size_t kChunkBytes = 64 << 10;
constexpr size_t kMaxWordBytes =
    400;  // 100 characters: longer words are unknown to the tokenizer anyway
constexpr std::string_view kContinuation = "##";
constexpr std::array<std::string_view, 5> kSpecials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]",
                                                       "[MASK]"};

using Symbol = int32_t;
using Pair = uint64_t;  // left symbol in the high half, right in the low

Pair make_pair_key(Symbol left, Symbol right) {
  return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
}
Symbol left_of(Pair pair) { return static_cast<Symbol>(pair >> 32); }
Symbol right_of(Pair pair) { return static_cast<Symbol>(pair & 0xFFFFFFFF); }

struct Word {
  std::vector<Symbol> symbols;
  uint64_t count = 0;
};

// The merging itself. Symbols are numbers; their texts are in `texts_`, which ends up as the
// vocabulary without specials.
class Merger {
 public:
  Symbol symbol(const std::string& text) {
    const auto [it, fresh] = known_.try_emplace(text, static_cast<Symbol>(texts_.size()));
    if (fresh) texts_.push_back(text);
    return it->second;
  }

  void add_word(Word word) {
    const uint32_t index = static_cast<uint32_t>(words_.size());
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const Pair pair = make_pair_key(word.symbols[i], word.symbols[i + 1]);
      change(pair, static_cast<int64_t>(word.count)).add_word(index);
    }
    words_.push_back(std::move(word));
  }

  // Merges the most frequent pair until there are `size` symbols or no pair occurs `min_count`
  // times.
  void run(size_t size, uint64_t min_count) {
    Progress progress("learning the vocabulary", size, "tokens");
    enqueue_changed();
    while (texts_.size() < size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto it = pairs_.find(best.pair);
      if (it == pairs_.end() || it->second.count != best.count)
        continue;  // out of date: a newer entry exists
      if (best.count < static_cast<int64_t>(min_count)) return;
      merge(best.pair);
      enqueue_changed();
      progress.update(texts_.size());
    }
  }

  const std::vector<std::string>& texts() const { return texts_; }

 private:
  struct PairState {
    int64_t count = 0;
    std::vector<uint32_t> words;  // where it occurs; may name one that lost it since

    void add_word(uint32_t index) {
      if (words.empty() || words.back() != index) words.push_back(index);
    }
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    const std::vector<std::string>* texts;

    bool operator<(const Candidate& other) const {  // the queue has the greatest on top
      if (count != other.count) return count < other.count;
      const auto names = [this](Pair p) {
        return std::tie((*texts)[left_of(p)], (*texts)[right_of(p)]);
      };
      return names(pair) > names(other.pair);
    }
  };

  PairState& change(Pair pair, int64_t by) {
    PairState& state = pairs_[pair];
    state.count += by;
    changed_.insert(pair);
    return state;
  }

  void enqueue_changed() {
    for (Pair pair : changed_) {
      const auto it = pairs_.find(pair);
      if (it->second.count > 0) {
        queue_.push({it->second.count, pair, &texts_});
      } else {
        pairs_.erase(it);
      }
    }
    changed_.clear();
  }

  void merge(Pair pair) {
    const std::string& right = texts_[right_of(pair)];
    const Symbol merged = symbol(texts_[left_of(pair)] + right.substr(kContinuation.size()));
    const std::vector<uint32_t> where = std::move(pairs_[pair].words);
    for (uint32_t index : where) merge_in_word(index, pair, merged);
  }

  // Replaces every occurrence from left to right. The pairs of the old spelling leave the counts
  // and those of the new one enter: simpler than patching the neighbours, and right for overlapping
  // ones too.
  void merge_in_word(uint32_t index, Pair pair, Symbol merged) {
    Word& word = words_[index];
    spelling_.clear();
    for (size_t i = 0; i < word.symbols.size(); ++i) {
      const bool here = i + 1 < word.symbols.size() &&
                        make_pair_key(word.symbols[i], word.symbols[i + 1]) == pair;
      spelling_.push_back(here ? merged : word.symbols[i]);
      i += here;
    }
    if (spelling_.size() == word.symbols.size()) return;
    const int64_t count = static_cast<int64_t>(word.count);
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      change(make_pair_key(word.symbols[i], word.symbols[i + 1]), -count);
    }
    for (size_t i = 0; i + 1 < spelling_.size(); ++i) {
      PairState& state = change(make_pair_key(spelling_[i], spelling_[i + 1]), count);
      const bool is_new = spelling_[i] == merged || spelling_[i + 1] == merged;
      if (is_new) state.add_word(index);
    }
    word.symbols = spelling_;
  }

  std::vector<std::string> texts_;
  std::unordered_map<std::string, Symbol> known_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState> pairs_;
  std::unordered_set<Pair> changed_;  // since the queue was last fed
  std::priority_queue<Candidate> queue_;
  std::vector<Symbol> spelling_;
};

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

using WordCount = std::pair<std::string_view, uint64_t>;

// More frequent first; among equals, in the order of the text. Total, so that no hash order shows
// through.
bool ranks_before(const WordCount& a, const WordCount& b) {
  return a.second != b.second ? a.second > b.second : a.first < b.first;
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
    : options_(options), normalizer_(options.normalizer) {}

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
      count(bytes.substr(from, to - from));
      return true;
    });
    pos = end;
  }
}

void WordPieceTrainer::count(std::string_view word) {
  if (word.size() > kMaxWordBytes) return;
  const auto it = counts_.find(word);
  if (it != counts_.end()) {
    ++it->second;
    return;
  }
  if (counts_.size() >= options_.max_distinct_words) forget_rare_words();
  counts_.emplace(word, 1);
}

void WordPieceTrainer::forget_rare_words() {
  std::vector<WordCount> words(counts_.begin(), counts_.end());
  const auto middle = words.begin() + words.size() / 2;
  std::nth_element(words.begin(), middle, words.end(), ranks_before);
  for (auto it = middle; it != words.end(); ++it) counts_.erase(counts_.find(it->first));
}

std::vector<std::string> WordPieceTrainer::train(size_t vocab_size) const {
  if (counts_.empty()) fail(ErrorKind::kInput, "no words to learn a vocabulary from");
  if (vocab_size <= kSpecials.size()) {
    fail(ErrorKind::kUsage, "a vocabulary of {} tokens has no room beside the {} special ones",
         vocab_size, kSpecials.size());
  }
  std::vector<WordCount> words(counts_.begin(), counts_.end());
  std::sort(words.begin(), words.end(), ranks_before);

  const size_t room = vocab_size - kSpecials.size();
  Merger merger;
  for (const std::string& symbol : choose_alphabet(words, std::min(options_.max_alphabet, room)))
    merger.symbol(symbol);
  const size_t alphabet = merger.texts().size();
  const std::unordered_set<std::string> letters(merger.texts().begin(), merger.texts().end());
  for (const auto& [text, count] : words) {
    Word word{{}, count};
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
