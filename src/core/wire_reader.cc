#include "core/wire_reader.h"

#include <cstring>

namespace snug {

std::optional<uint64_t> take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = uint8_t(bytes.front());
    bytes.remove_prefix(1);
    if (shift == 63 && byte > 1) return std::nullopt;
    value |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

template <class T>
std::optional<T> take_fixed(std::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof(value)) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}
template std::optional<uint32_t> take_fixed(std::string_view&);
template std::optional<uint64_t> take_fixed(std::string_view&);

std::optional<WireField> take_field(std::string_view& message) {
  using Kind = WireField::Kind;
  const auto tag = take_varint(message);
  if (!tag) return std::nullopt;
  WireField field{.number = *tag >> 3};
  const auto number = [&](Kind kind, auto value) -> std::optional<WireField> {
    if (!value) return std::nullopt;
    field.kind = kind;
    field.value = *value;
    return field;
  };
  switch (*tag & 7) {
    case 0:
      return number(Kind::kVarint, take_varint(message));
    case 1:
      return number(Kind::kFixed64, take_fixed<uint64_t>(message));
    case 5:
      return number(Kind::kFixed32, take_fixed<uint32_t>(message));
    case 2: {
      const auto length = take_varint(message);
      if (!length || *length > message.size()) return std::nullopt;
      field.kind = Kind::kBytes;
      field.bytes = message.substr(0, *length);
      message.remove_prefix(*length);
      return field;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace snug
