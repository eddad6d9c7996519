// Tokens and their ids: all text in one pool, found through one open-addressing table, about 1 MB
// for 30,000 tokens. The hash can be continued byte by byte, so one pass over a word gives the hash
// of every prefix, and the longest match is then found by a few probes from the long end.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

class Vocabulary {
 public:
  // What stands before a piece inside a token: "" at the start of a word, "##" inside it.
  struct Lead {
    std::string text;
    uint64_t hash = 0;
    std::array<uint32_t, 256> longest{};  // by first byte after the lead: bytes of the longest such
                                          // token, without the lead
  };
  struct Match {
    int32_t id = -1;   // -1: none
    size_t bytes = 0;  // of the text, not counting the lead
  };
  using Hashes = std::vector<uint64_t>;  // scratch of longest_match

  Vocabulary() = default;
  // In the order of ids. When `duplicate` is not -1 afterwards, that id repeats an earlier token
  // and must not be used.
  explicit Vocabulary(const std::vector<std::string>& tokens);

  int32_t size() const { return static_cast<int32_t>(ends_.size()); }
  int32_t duplicate() const { return duplicate_; }
  std::string_view token(int32_t id) const;
  int32_t find(std::string_view token) const;  // -1: not there
  std::string_view pool() const { return pool_; }

  Lead make_lead(std::string_view text) const;
  // The longest token that is the lead and then a non-empty beginning of `text`.
  Match longest_match(const Lead& lead, std::string_view text, Hashes& hashes) const;

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t id = -1;
  };

  template <class Equal>
  int32_t probe(uint64_t hash, Equal equal) const;

  std::string pool_;
  std::vector<uint32_t> ends_;  // token i is pool_[ends_[i - 1], ends_[i])
  std::vector<Slot> slots_;     // a power of two, at most half full
  int32_t duplicate_ = -1;
};

}  // namespace snug
