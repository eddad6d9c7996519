// GPT-2's way to write any bytes as printable characters: in vocabularies and merges each byte is
// one code point, its own where that is printable, and one from U+0100 on otherwise (a space is
// U+0120). The encoder itself works on bytes; only files see this alphabet.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

char32_t byte_symbol(uint8_t byte);
// All 256 in the order of GPT-2's ids.
const std::array<uint8_t, 256>& byte_order();

// Bytes as a token is written, and back; nothing where a character is not of the alphabet.
std::string spell_bytes(std::string_view bytes);
std::optional<std::string> unspell_bytes(std::string_view token);

}  // namespace snug
