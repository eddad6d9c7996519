#include "text/charsmap.h"

#include <cstring>

#include "core/error.h"
#include "text/unicode.h"

namespace snug {
namespace {

// A unit of the trie, as the Darts library lays it out: bit 31 marks a leaf, whose other bits are
// its value. An inner unit has its label in bits 0 to 7, in bit 8 whether a leaf hangs on it, and
// above that the distance to its children.
constexpr size_t kBlock = 256;  // units come in blocks: with its base inside, a child is inside too

bool is_leaf(uint32_t unit) { return unit >> 31; }
uint32_t label(uint32_t unit) { return unit & 0x800000FFu; }
bool has_leaf(uint32_t unit) { return (unit >> 8) & 1; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFFu; }

uint32_t read_little_endian(const char* bytes) {
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return result;
}

}  // namespace

Charsmap::Charsmap(std::string_view blob, std::string_view name, std::string_view origin) {
  const auto refuse = [&](std::string_view why) {
    fail(ErrorKind::kInput, "{}: {} is malformed: {}", origin, name, why);
  };
  if (blob.size() < 4) refuse("it is shorter than its header");
  const uint32_t trie_bytes = read_little_endian(blob.data());
  blob.remove_prefix(4);
  if (trie_bytes == 0 || trie_bytes >= blob.size()) refuse("the trie does not fit");
  if (trie_bytes % (4 * kBlock) != 0) refuse("the trie does not consist of whole blocks");
  units_.resize(trie_bytes / 4);
  for (size_t i = 0; i < units_.size(); ++i) units_[i] = read_little_endian(blob.data() + 4 * i);
  pool_ = blob.substr(trie_bytes);
  if (pool_.back() != '\0') refuse("its last replacement does not end");
  if (find_invalid_utf8(pool_) != std::string_view::npos) refuse("a replacement is not UTF-8");
  for (size_t i = 0; i < units_.size(); ++i) {
    if (i > 0 && is_leaf(units_[i])) continue;  // the root is never looked at as one
    const size_t base = i ^ offset(units_[i]);
    if (base >= units_.size()) refuse("a branch of the trie leads out of it");
    if (!has_leaf(units_[i])) continue;
    const uint32_t place = value(units_[base]);
    if (place >= pool_.size() || U8_IS_TRAIL(pool_[place])) {
      refuse("a leaf of the trie is no replacement");
    }
  }
}

template <class Found>
void Charsmap::search(std::string_view text, Found found) const {
  if (units_.empty()) return;
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) return;
    node ^= byte;
    const uint32_t unit = units_[node];
    if (label(unit) != byte) return;
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    const char* replacement = pool_.data() + value(units_[node]);
    if (!found(Rule{i + 1, std::string_view(replacement, std::strlen(replacement))})) return;
  }
}

std::optional<Charsmap::Rule> Charsmap::shortest(std::string_view text) const {
  std::optional<Rule> result;
  search(text, [&](const Rule& rule) {
    result = rule;
    return false;
  });
  return result;
}

std::optional<Charsmap::Rule> Charsmap::longest(std::string_view text) const {
  std::optional<Rule> result;
  search(text, [&](const Rule& rule) {
    result = rule;
    return true;
  });
  return result;
}

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8));
    bits &= (1u << count) - 1;
  }
  return bytes;
}

}  // namespace snug
