// The merges of byte-pair encoding and their application to a word: as long as neighbours can be
// merged, the pair of the lowest rank is, from the left. A word of a few dozen symbols is merged in
// place; longer ones go through a queue, so that megabytes without a space do not take quadratic
// time (they need 24 to 40 bytes of memory for each byte of the word meanwhile).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace snug {

struct Merge {
  int32_t left = -1, right = -1, merged = -1;
  bool operator==(const Merge&) const = default;
};

class MergeTable {
 public:
  // Memory for long words, kept by the caller between calls.
  struct Workspace {
    struct Node {
      int32_t symbol;
      uint32_t previous, next;  // positions
      uint32_t rank;            // of the pair with the next
    };
    struct Block {  // of a list of positions; as large as a cache line
      uint32_t next, count;
      uint32_t positions[14];
    };
    std::vector<Node> nodes;
    std::vector<uint64_t> heap;
    std::vector<Block> blocks;
    std::vector<uint32_t> heads, batch;

    void release_if_large();
  };

  MergeTable() = default;
  // In the order of ranks; of equal pairs the last counts, as in the reference.
  explicit MergeTable(std::vector<Merge> merges);

  std::span<const Merge> merges() const { return merges_; }
  // Merges the symbols in place; returns how many remain, at the front.
  size_t apply(std::span<int32_t> symbols, Workspace& work) const;

 private:
  class LongWord;
  class RankLists;
  struct Slot {
    int32_t left = -1, right = -1;
    uint32_t rank = 0;
  };

  uint32_t rank_of(int32_t left, int32_t right) const;
  size_t home_of(int32_t left, int32_t right) const;
  bool find_in_order() const;
  size_t apply_short(std::span<int32_t> symbols) const;
  void apply_with_heap(LongWord& word, Workspace& work) const;
  void apply_rank_by_rank(LongWord& word, Workspace& work) const;

  std::vector<Merge> merges_;
  std::vector<Slot> slots_;  // a power of two, at most half full
  int shift_ = 63;
  bool in_order_ = true;  // a merge makes no pair of a lower rank; so it is after any training
};

}  // namespace snug
