// The wire format of protocol buffers, and the varints that LevelDB shares with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace snug {

// Reads from the front of `bytes`, which it moves on; nothing where they end first or the number
// has more than 64 bits.
std::optional<uint64_t> take_varint(std::string_view& bytes);
template <class T>
std::optional<T> take_fixed(std::string_view& bytes);  // little-endian: uint32_t, uint64_t

// One field of a message.
struct WireField {
  uint64_t number = 0;
  uint64_t value = 0;        // of varints and fixed widths
  std::string_view bytes{};  // of texts and messages
  enum class Kind { kVarint, kFixed64, kBytes, kFixed32 } kind = Kind::kVarint;
};

// The next field; nothing where the message is broken there.
std::optional<WireField> take_field(std::string_view& message);

}  // namespace snug
