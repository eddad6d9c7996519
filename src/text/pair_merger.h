// Learns merges from words: the most frequent pair of neighbouring symbols becomes one symbol,
// again and again. The count of every pair is kept up to date instead of recounted, and ties go to
// the pair that sorts first, so the result depends on the words alone.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace snug {

class PairMerger {
 public:
  using Symbol = int32_t;
  using Join = std::function<std::string(const std::string& left, const std::string& right)>;
  struct Word {
    std::vector<Symbol> symbols;
    uint64_t count = 0;
  };

  // `join` makes the text of a pair.
  explicit PairMerger(Join join) : join_(std::move(join)) {}

  Symbol symbol(const std::string& text);  // known or new
  void add_word(Word word);
  // Merges the most frequent pair until there are `size` symbols or no pair occurs `min_count`
  // times.
  void run(size_t size, uint64_t min_count);

  const std::vector<std::string>& texts() const { return texts_; }                  // by symbol
  const std::vector<std::pair<Symbol, Symbol>>& merges() const { return merges_; }  // in order

 private:
  using Pair = uint64_t;  // left symbol in the high half, right in the low
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

    bool operator<(const Candidate& other) const;  // the queue has the greatest on top
  };

  static Pair make_pair_key(Symbol left, Symbol right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  }
  static Symbol left_of(Pair pair) { return static_cast<Symbol>(pair >> 32); }
  static Symbol right_of(Pair pair) { return static_cast<Symbol>(pair & 0xFFFFFFFF); }

  PairState& change(Pair pair, int64_t by);
  void enqueue_changed();
  void merge(Pair pair);
  void merge_in_word(uint32_t index, Pair pair, Symbol merged);

  Join join_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, Symbol> known_;
  std::vector<std::pair<Symbol, Symbol>> merges_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState> pairs_;
  std::unordered_set<Pair> changed_;  // since the queue was last fed
  std::priority_queue<Candidate> queue_;
  std::vector<Symbol> spelling_;
};

}  // namespace snug
