#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"

namespace snug {
namespace {

constexpr uint64_t kHashStart = 0x9E3779B97F4A7C15;

// The shift makes the step non-linear: without it, long strings built to collide would.
uint64_t hash_byte(uint64_t hash, char byte) {
  hash = (hash ^ static_cast<uint8_t>(byte)) * 0xD6E8FEB86659FD93;
  return hash ^ (hash >> 32);
}

uint64_t hash_text(std::string_view text) {
  uint64_t hash = kHashStart;
  for (char byte : text) hash = hash_byte(hash, byte);
  return hash;
}

}  // namespace

template <class Equal>
int32_t Vocabulary::probe(uint64_t hash, Equal equal) const {
  const size_t mask = slots_.size() - 1;
  const uint32_t tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.id < 0 || (slot.tag == tag && equal(slot.id))) return slot.id;
  }
}

Vocabulary::Vocabulary(const std::vector<std::string>& tokens) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  SNUG_CHECK(bytes < UINT32_MAX && tokens.size() < INT32_MAX);
  pool_.reserve(bytes);
  ends_.reserve(tokens.size());
  slots_.resize(std::bit_ceil(2 * tokens.size() + 2));
  for (const std::string& token : tokens) {
    if (find(token) >= 0) {
      duplicate_ = size();
      return;
    }
    const uint64_t hash = hash_text(token);
    size_t i = hash & (slots_.size() - 1);
    while (slots_[i].id >= 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {static_cast<uint32_t>(hash >> 32), size()};
    pool_ += token;
    ends_.push_back(static_cast<uint32_t>(pool_.size()));
  }
}

std::string_view Vocabulary::token(int32_t id) const {
  SNUG_CHECK(id >= 0 && id < size());
  const uint32_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(pool_).substr(begin, ends_[id] - begin);
}

int32_t Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  return probe(hash_text(text), [&](int32_t id) { return token(id) == text; });
}

Vocabulary::Lead Vocabulary::make_lead(std::string_view text) const {
  Lead lead{std::string(text), hash_text(text), {}};
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view whole = token(id);
    if (whole.size() <= text.size() || !whole.starts_with(text)) continue;
    uint32_t& longest = lead.longest[static_cast<uint8_t>(whole[text.size()])];
    longest = std::max(longest, static_cast<uint32_t>(whole.size() - text.size()));
  }
  return lead;
}

Vocabulary::Match Vocabulary::longest_match(const Lead& lead, std::string_view text,
                                            Hashes& hashes) const {
  if (text.empty()) return {};
  const size_t limit = std::min<size_t>(text.size(), lead.longest[static_cast<uint8_t>(text[0])]);
  if (hashes.size() < limit) hashes.resize(limit);
  uint64_t hash = lead.hash;
  for (size_t i = 0; i < limit; ++i) hashes[i] = hash = hash_byte(hash, text[i]);

  // No need to look at code point borders: tokens are whole code points, so a match ends on one.
  for (size_t length = limit; length > 0; --length) {
    const int32_t id = probe(hashes[length - 1], [&](int32_t candidate) {
      const std::string_view whole = token(candidate);
      return whole.size() == lead.text.size() + length && whole.starts_with(lead.text) &&
             std::memcmp(whole.data() + lead.text.size(), text.data(), length) == 0;
    });
    if (id >= 0) return {id, length};
  }
  return {};
}

}  // namespace snug
