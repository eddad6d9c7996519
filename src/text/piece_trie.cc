#include "text/piece_trie.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace snug {
namespace {

constexpr size_t kMaxNodes = size_t{1} << 24;  // an edge's key has 24 bits for its node

}  // namespace

PieceTrie::PieceTrie(const Vocabulary& vocabulary, std::string_view origin) : piece_(1, -1) {
  const size_t most_nodes = vocabulary.pool().size() + 1;
  if (most_nodes >= kMaxNodes) {
    fail(ErrorKind::kInput, "{}: the pieces have {} bytes together, more than the {} supported",
         origin, most_nodes - 1, kMaxNodes);
  }
  // Sized for the nodes there really are: pieces share their beginnings.
  std::vector<int32_t> order(vocabulary.size());
  for (int32_t id = 0; id < vocabulary.size(); ++id) order[id] = id;
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return vocabulary.token(a) < vocabulary.token(b); });
  size_t nodes = 1;
  std::string_view last;
  for (int32_t id : order) {
    const std::string_view piece = vocabulary.token(id);
    nodes +=
        piece.size() -
        (std::mismatch(piece.begin(), piece.end(), last.begin(), last.end()).first - piece.begin());
    last = piece;
  }
  edges_.resize(std::max<size_t>(std::bit_ceil(2 * nodes), 2));
  shift_ = 32 - static_cast<uint32_t>(std::countr_zero(edges_.size()));
  piece_.reserve(nodes);
  for (int32_t id : order) {
    uint32_t node = 0;
    const std::string_view piece = vocabulary.token(id);
    for (size_t i = 0; i < piece.size(); ++i) {
      const uint8_t byte = static_cast<uint8_t>(piece[i]);
      if (i == 0) {
        if (from_root_[byte] == 0) from_root_[byte] = add_node();
        node = from_root_[byte];
        continue;
      }
      uint32_t next = child(node, byte);
      if (next == 0) {
        next = add_node();
        size_t place = slot(key(node, byte));
        while (edges_[place].key != 0) place = (place + 1) & (edges_.size() - 1);
        edges_[place] = {key(node, byte), next};
      }
      node = next;
    }
    if (node != 0) piece_[node] = id;
  }
}

uint32_t PieceTrie::add_node() {
  piece_.push_back(-1);
  return static_cast<uint32_t>(piece_.size() - 1);
}

}  // namespace snug
