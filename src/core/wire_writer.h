// Pieces of the wire format of protocol buffers, and the little-endian numbers that go with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace snug::wire {

inline std::string varint(uint64_t value) {
  std::string result;
  for (; value >= 0x80; value >>= 7) result += char(value | 0x80);
  return result + char(value);
}
template <class T>
std::string fixed(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline std::string number_field(int number, uint64_t value) {
  return varint(uint64_t(number) << 3) + varint(value);
}
inline std::string bytes_field(int number, std::string_view value) {
  return varint(uint64_t(number) << 3 | 2) + varint(value.size()) + std::string(value);
}
template <class T>
std::string fixed_field(int number, T value) {  // of four or eight bytes
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return varint(uint64_t(number) << 3 | (sizeof(T) == 4 ? 5 : 1)) + fixed(value);
}

}  // namespace snug::wire
