#include "text/merge_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "core/error.h"
#include "text/scratch.h"

namespace snug {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();
constexpr size_t kShortWord = 64;      // symbols; above it the heap is faster
constexpr size_t kHugeWord = 1 << 14;  // above it the heap leaves the cache

// Ordered by rank, then from the left.
uint64_t heap_entry(uint32_t rank, uint32_t position) { return uint64_t{rank} << 32 | position; }

}  // namespace

MergeTable::MergeTable(std::vector<Merge> merges) : merges_(std::move(merges)) {
  SNUG_CHECK(merges_.size() < kNoRank);
  slots_.resize(std::bit_ceil(2 * merges_.size() + 2));
  shift_ = 64 - std::countr_zero(slots_.size());
  for (uint32_t rank = 0; rank < merges_.size(); ++rank) {
    const Merge& merge = merges_[rank];
    size_t i = home_of(merge.left, merge.right);
    while (slots_[i].left >= 0 &&
           (slots_[i].left != merge.left || slots_[i].right != merge.right)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i] = {merge.left, merge.right, rank};
  }
  in_order_ = find_in_order();
}

// Whether every merge comes after all that make one of its two symbols.
bool MergeTable::find_in_order() const {
  int32_t highest = 0;
  for (const Merge& merge : merges_) {
    highest = std::max({highest, merge.left, merge.right, merge.merged});
  }
  std::vector<uint32_t> made_by(size_t(highest) + 1, 0);  // one more than the last rank, 0: none
  for (uint32_t rank = 0; rank < merges_.size(); ++rank) made_by[merges_[rank].merged] = rank + 1;
  const auto comes_first = [&](int32_t symbol, uint32_t rank) { return made_by[symbol] <= rank; };
  for (uint32_t rank = 0; rank < merges_.size(); ++rank) {
    if (!comes_first(merges_[rank].left, rank) || !comes_first(merges_[rank].right, rank)) {
      return false;
    }
  }
  return true;
}

size_t MergeTable::home_of(int32_t left, int32_t right) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  return (key ^ key >> 29) * 0x9E3779B97F4A7C15 >> shift_;
}

uint32_t MergeTable::rank_of(int32_t left, int32_t right) const {
  for (size_t i = home_of(left, right);; i = (i + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[i];
    if (slot.left == left && slot.right == right) return slot.rank;
    if (slot.left < 0) return kNoRank;
  }
}

size_t MergeTable::apply_short(std::span<int32_t> symbols) const {
  std::array<uint32_t, kShortWord> ranks;  // of symbol i with the one after it
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
  while (count > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + (count - 1));
    if (*best == kNoRank) break;
    const size_t at = best - ranks.begin();
    symbols[at] = merges_[*best].merged;
    std::copy(symbols.begin() + at + 2, symbols.begin() + count, symbols.begin() + at + 1);
    if (at + 2 < count) std::copy(best + 2, ranks.begin() + (count - 1), best + 1);
    --count;
    if (at > 0) ranks[at - 1] = rank_of(symbols[at - 1], symbols[at]);
    if (at + 1 < count) ranks[at] = rank_of(symbols[at], symbols[at + 1]);
  }
  return count;
}

// The symbols as a doubly linked list, each with the rank of its pair. A queue holds the positions
// of pairs; an entry that a merge has overtaken is recognised by the rank noted at its position.
class MergeTable::LongWord {
 public:
  LongWord(const MergeTable& table, std::span<int32_t> symbols, Workspace& work)
      : table_(table), symbols_(symbols), nodes_(work.nodes) {
    SNUG_CHECK(symbols.size() < kNowhere);
    const uint32_t count = static_cast<uint32_t>(symbols.size());
    nodes_.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      const bool last = i + 1 == count;
      nodes_[i] = {symbols[i], i == 0 ? kNowhere : i - 1, last ? kNowhere : i + 1,
                   last ? kNoRank : table.rank_of(symbols[i], symbols[i + 1])};
    }
  }

  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t rank(uint32_t position) const { return nodes_[position].rank; }
  void prefetch(uint32_t position) const { __builtin_prefetch(&nodes_[position]); }

  // Merges the pair at `left` and calls push(rank, position) for each pair that this makes.
  template <class Push>
  void merge(uint32_t left, Push push) {
    Workspace::Node& node = nodes_[left];
    node.symbol = table_.merges_[node.rank].merged;
    Workspace::Node& right = nodes_[node.next];
    right.rank = kNoRank;
    node.next = right.next;
    if (node.next != kNowhere) nodes_[node.next].previous = left;
    update(left, push);
    if (node.previous != kNowhere) update(node.previous, push);
  }

  // Writes what remains back to the front; returns how many.
  size_t finish() const {
    size_t kept = 0;
    for (uint32_t i = 0; i != kNowhere; i = nodes_[i].next) symbols_[kept++] = nodes_[i].symbol;
    return kept;
  }

 private:
  template <class Push>
  void update(uint32_t left, Push push) {
    Workspace::Node& node = nodes_[left];
    node.rank =
        node.next == kNowhere ? kNoRank : table_.rank_of(node.symbol, nodes_[node.next].symbol);
    if (node.rank != kNoRank) push(node.rank, left);
  }

  const MergeTable& table_;
  std::span<int32_t> symbols_;
  std::vector<Workspace::Node>& nodes_;
};

void MergeTable::apply_with_heap(LongWord& word, Workspace& work) const {
  std::vector<uint64_t>& heap = work.heap;
  heap.clear();
  for (uint32_t i = 0; i < word.size(); ++i) {
    if (word.rank(i) != kNoRank) heap.push_back(heap_entry(word.rank(i), i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const uint64_t best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const uint32_t position = static_cast<uint32_t>(best);
    if (word.rank(position) != best >> 32) continue;
    word.merge(position, [&](uint32_t rank, uint32_t at) {
      heap.push_back(heap_entry(rank, at));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    });
  }
}

// Lists of positions, one for each rank, in the memory of a workspace.
class MergeTable::RankLists {
 public:
  RankLists(size_t ranks, Workspace& work) : blocks_(work.blocks), heads_(work.heads) {
    blocks_.clear();
    heads_.assign(ranks, kNowhere);
  }

  void push(uint32_t rank, uint32_t position) {
    uint32_t& head = heads_[rank];
    if (head == kNowhere || blocks_[head].count == std::size(blocks_[head].positions)) {
      head = new_block(head);
    }
    Workspace::Block& block = blocks_[head];
    block.positions[block.count++] = position;
  }

  // Moves a list to `positions`, sorted.
  void take(uint32_t rank, std::vector<uint32_t>& positions) {
    positions.clear();
    for (uint32_t place = heads_[rank]; place != kNowhere;) {
      Workspace::Block& block = blocks_[place];
      positions.insert(positions.end(), block.positions, block.positions + block.count);
      const uint32_t next = std::exchange(block.next, unused_);
      unused_ = std::exchange(place, next);
    }
    heads_[rank] = kNowhere;
    std::sort(positions.begin(), positions.end());
  }

 private:
  uint32_t new_block(uint32_t next) {
    uint32_t place = unused_;
    if (place == kNowhere) {
      place = static_cast<uint32_t>(blocks_.size());
      blocks_.emplace_back();
    } else {
      unused_ = blocks_[place].next;
    }
    blocks_[place].next = next;
    blocks_[place].count = 0;
    return place;
  }

  std::vector<Workspace::Block>& blocks_;
  std::vector<uint32_t>& heads_;
  uint32_t unused_ = kNowhere;  // blocks to be used again
};

// The ranks one after the other: a heap of millions of pairs would spend its time waiting for
// memory.
void MergeTable::apply_rank_by_rank(LongWord& word, Workspace& work) const {
  RankLists lists(merges_.size(), work);
  const auto push = [&](uint32_t rank, uint32_t position) { lists.push(rank, position); };
  for (uint32_t i = 0; i < word.size(); ++i) {
    if (word.rank(i) != kNoRank) push(word.rank(i), i);
  }
  constexpr size_t kAhead = 16;
  const std::vector<uint32_t>& batch = work.batch;
  for (uint32_t rank = 0; rank < merges_.size(); ++rank) {
    lists.take(rank, work.batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (i + kAhead < batch.size()) word.prefetch(batch[i + kAhead]);
      if (word.rank(batch[i]) == rank) word.merge(batch[i], push);
    }
  }
}

size_t MergeTable::apply(std::span<int32_t> symbols, Workspace& work) const {
  if (symbols.size() < 2 || merges_.empty()) return symbols.size();
  if (symbols.size() <= kShortWord) return apply_short(symbols);
  LongWord word(*this, symbols, work);
  if (symbols.size() <= kHugeWord || !in_order_) {
    apply_with_heap(word, work);
  } else {
    apply_rank_by_rank(word, work);
  }
  return word.finish();
}

void MergeTable::Workspace::release_if_large() {
  snug::release_if_large(nodes);
  snug::release_if_large(heap);
  snug::release_if_large(blocks);
  snug::release_if_large(heads);
  snug::release_if_large(batch);
}

}  // namespace snug
