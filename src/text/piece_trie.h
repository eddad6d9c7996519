// All pieces that a text begins with, in one walk over its bytes: a trie whose edges are one
// open-addressing table, 8 bytes each, about 2 MB for 32,000 pieces.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace snug {

class PieceTrie {
 public:
  PieceTrie() = default;
  // Errors (kInput) name `origin`.
  PieceTrie(const Vocabulary& vocabulary, std::string_view origin);

  // Calls found(id, bytes) for each, the shortest first.
  template <class Found>
  void for_each_prefix(std::string_view text, Found found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint8_t byte = static_cast<uint8_t>(text[i]);
      node = i == 0 ? from_root_[byte] : child(node, byte);
      if (node == 0) return;
      if (piece_[node] >= 0) found(piece_[node], i + 1);
    }
  }

 private:
  struct Edge {
    uint32_t key = 0;  // node and byte; 0: none, since the root's edges are not here
    uint32_t child = 0;
  };

  static uint32_t key(uint32_t node, uint8_t byte) { return (node << 8) | byte; }
  size_t slot(uint32_t key) const { return (key * 0x9E3779B1u) >> shift_; }
  uint32_t child(uint32_t node, uint8_t byte) const {  // 0: none
    const uint32_t wanted = key(node, byte);
    for (size_t i = slot(wanted);; i = (i + 1) & (edges_.size() - 1)) {
      if (edges_[i].key == wanted) return edges_[i].child;
      if (edges_[i].key == 0) return 0;
    }
  }
  uint32_t add_node();

  std::array<uint32_t, 256> from_root_{};
  std::vector<Edge> edges_;  // a power of two, at most half full
  uint32_t shift_ = 0;
  std::vector<int32_t> piece_;  // by node: the piece that ends there, or -1
};

}  // namespace snug
