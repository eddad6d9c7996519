#include "text/word_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/error.h"

namespace snug {
namespace {

constexpr size_t kEntries = 1 << 14;

}  // namespace

static_assert(sizeof(WordCache::Entry) == 64, "one cache line for each word");

WordCache::WordCache() : entries_(kEntries) {}

WordCache& WordCache::of_this_thread() {
  static thread_local WordCache cache;
  return cache;
}

uint32_t WordCache::new_owner() {
  static std::atomic<uint32_t> last = 0;
  return ++last;
}

WordCache::Entry& WordCache::place(uint32_t owner, std::string_view word) {
  SNUG_CHECK(word.size() <= kMaxWordBytes);
  return entries_[XXH3_64bits_withSeed(word.data(), word.size(), owner) & (kEntries - 1)];
}

bool WordCache::holds(const Entry& entry, uint32_t owner, std::string_view word) {
  return entry.owner == owner && entry.bytes == word.size() &&
         std::memcmp(entry.word, word.data(), word.size()) == 0;
}

void WordCache::fill(Entry& entry, uint32_t owner, std::string_view word,
                     std::span<const int32_t> ids) {
  if (ids.size() > kMaxTokens) return;
  entry.owner = owner;
  entry.bytes = static_cast<uint8_t>(word.size());
  entry.tokens = static_cast<uint8_t>(ids.size());
  std::copy(word.begin(), word.end(), entry.word);
  std::copy(ids.begin(), ids.end(), entry.ids);
}

}  // namespace snug
