#include "text/pair_merger.h"

#include <tuple>

#include "core/progress.h"

namespace snug {

PairMerger::Symbol PairMerger::symbol(const std::string& text) {
  const auto [it, fresh] = known_.try_emplace(text, static_cast<Symbol>(texts_.size()));
  if (fresh) texts_.push_back(text);
  return it->second;
}

void PairMerger::add_word(Word word) {
  const uint32_t index = static_cast<uint32_t>(words_.size());
  for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
    const Pair pair = make_pair_key(word.symbols[i], word.symbols[i + 1]);
    change(pair, static_cast<int64_t>(word.count)).add_word(index);
  }
  words_.push_back(std::move(word));
}

void PairMerger::run(size_t size, uint64_t min_count) {
  Progress progress("learning the vocabulary", size, "tokens");
  enqueue_changed();
  while (texts_.size() < size && !queue_.empty()) {
    const Candidate best = queue_.top();
    queue_.pop();
    const auto it = pairs_.find(best.pair);
    if (it == pairs_.end() || it->second.count != best.count) {
      continue;  // out of date: a newer entry exists
    }
    if (best.count < static_cast<int64_t>(min_count)) return;
    merge(best.pair);
    enqueue_changed();
    progress.update(texts_.size());
  }
}

bool PairMerger::Candidate::operator<(const Candidate& other) const {
  if (count != other.count) return count < other.count;
  const auto names = [this](Pair p) {
    return std::tie((*texts)[left_of(p)], (*texts)[right_of(p)]);
  };
  return names(pair) > names(other.pair);
}

PairMerger::PairState& PairMerger::change(Pair pair, int64_t by) {
  PairState& state = pairs_[pair];
  state.count += by;
  changed_.insert(pair);
  return state;
}

void PairMerger::enqueue_changed() {
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

void PairMerger::merge(Pair pair) {
  merges_.emplace_back(left_of(pair), right_of(pair));
  const Symbol merged = symbol(join_(texts_[left_of(pair)], texts_[right_of(pair)]));
  const std::vector<uint32_t> where = std::move(pairs_[pair].words);
  for (uint32_t index : where) merge_in_word(index, pair, merged);
}

// Replaces every occurrence from left to right. The pairs of the old spelling leave the counts and
// those of the new one enter: simpler than patching the neighbours, and right for overlapping ones
// too.
void PairMerger::merge_in_word(uint32_t index, Pair pair, Symbol merged) {
  Word& word = words_[index];
  spelling_.clear();
  for (size_t i = 0; i < word.symbols.size(); ++i) {
    const bool here =
        i + 1 < word.symbols.size() && make_pair_key(word.symbols[i], word.symbols[i + 1]) == pair;
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

}  // namespace snug
