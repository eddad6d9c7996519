#include "text/byte_level.h"

#include "text/unicode.h"

namespace snug {
namespace {

bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

struct Alphabet {
  std::array<char32_t, 256> symbol{};
  std::array<uint8_t, 256> order{};
  std::array<int16_t, 0x100 + 68> byte{};  // 68 bytes are not printable; -1: not in the alphabet

  Alphabet() {
    byte.fill(-1);
    size_t place = 0;
    char32_t next = 0x100;
    for (const bool printable : {true, false}) {
      for (int b = 0; b < 256; ++b) {
        if (is_printable(b) != printable) continue;
        symbol[b] = printable ? static_cast<char32_t>(b) : next++;
        byte[symbol[b]] = static_cast<int16_t>(b);
        order[place++] = static_cast<uint8_t>(b);
      }
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

char32_t byte_symbol(uint8_t byte) { return alphabet().symbol[byte]; }

const std::array<uint8_t, 256>& byte_order() { return alphabet().order; }

std::string spell_bytes(std::string_view bytes) {
  std::string token;
  for (char byte : bytes) append_utf8(token, byte_symbol(static_cast<uint8_t>(byte)));
  return token;
}

std::optional<std::string> unspell_bytes(std::string_view token) {
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = next_code_point(token, pos);
    if (c >= alphabet().byte.size() || alphabet().byte[c] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[c]);
  }
  return bytes;
}

}  // namespace snug
