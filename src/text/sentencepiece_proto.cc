#include "text/sentencepiece_proto.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <unordered_set>

#include "core/error.h"
#include "text/charsmap.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace snug {
namespace {

// The library builds its trie recursively, one call for each byte of a piece.
constexpr size_t kLongestPiece = 512;

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One message of protobuf's wire format, field by field.
class MessageReader {
 public:
  MessageReader(std::string_view bytes, size_t position, std::string_view origin)
      : bytes_(bytes), position_(position), origin_(origin) {}

  // The next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    if (number_ == 0) refuse("a field has no number");
    type_ = static_cast<WireType>(tag & 7);
    switch (type_) {
      case WireType::kVarint: value_ = varint(); return true;
      case WireType::kFixed64: take(8); return true;
      case WireType::kFixed32: take(4); return true;
      case WireType::kBytes: take(varint()); return true;
    }
    refuse("a field is of a kind that is not in use");
  }

  uint64_t number() const { return number_; }
  std::string_view bytes() const { return require(WireType::kBytes), content_; }
  MessageReader message() const {
    require(WireType::kBytes);
    return {content_, position_ + at_ - content_.size(), origin_};
  }
  bool boolean() const { return require(WireType::kVarint), value_ != 0; }
  float number_32() const {
    require(WireType::kFixed32);
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= uint32_t{static_cast<uint8_t>(content_[i])} << (8 * i);
    return std::bit_cast<float>(bits);
  }
  template <class Enum>
  Enum choice(Enum last, std::string_view name) const {
    require(WireType::kVarint);
    if (value_ < 1 || value_ > static_cast<uint64_t>(last))
      fail(ErrorKind::kInput, "{}: {} {} is not supported", origin_, name, value_);
    return static_cast<Enum>(value_);
  }

  [[noreturn]] void refuse(std::string_view why) const {
    fail(ErrorKind::kInput, "{}: not a SentencePiece model: byte {}: {}", origin_, position_ + at_,
         why);
  }

 private:
  void require(WireType type) const {
    if (type_ != type) refuse("a field is not of the kind it should be");
  }

  void take(uint64_t size) {
    if (size > bytes_.size() - at_) refuse("the file ends inside a field");
    content_ = bytes_.substr(at_, size);
    at_ += size;
  }

  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) refuse("the file ends inside a number");
      const uint8_t byte = static_cast<uint8_t>(bytes_[at_++]);
      result |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return result;
    }
    refuse("a number is too long");
  }

  std::string_view bytes_;
  size_t position_;  // of the message in the file
  std::string_view origin_;
  size_t at_ = 0;
  uint64_t number_ = 0, value_ = 0;
  WireType type_ = WireType::kVarint;
  std::string_view content_;
};

SentencePieceProto::Piece parse_piece(MessageReader reader) {
  SentencePieceProto::Piece piece;
  while (reader.next()) {
    if (reader.number() == 1) piece.text = reader.bytes();
    if (reader.number() == 2) piece.score = reader.number_32();
    if (reader.number() == 3)
      piece.type = reader.choice(SentencePieceProto::PieceType::kByte, "a piece of type");
  }
  return piece;
}

void parse_trainer(MessageReader reader, SentencePieceProto& proto) {
  while (reader.next()) {
    if (reader.number() == 3)
      proto.model_type = reader.choice(SentencePieceProto::ModelType::kChar, "model type");
    if (reader.number() == 24) proto.treat_whitespace_as_suffix = reader.boolean();
    if (reader.number() == 35) proto.byte_fallback = reader.boolean();
  }
}

SentencePieceProto::Normalizer parse_normalizer(MessageReader reader) {
  SentencePieceProto::Normalizer normalizer;
  while (reader.next()) {
    if (reader.number() == 2) normalizer.charsmap = reader.bytes();
    if (reader.number() == 3) normalizer.add_dummy_prefix = reader.boolean();
    if (reader.number() == 4) normalizer.remove_extra_whitespaces = reader.boolean();
    if (reader.number() == 5) normalizer.escape_whitespaces = reader.boolean();
  }
  return normalizer;
}

void check_piece(const SentencePieceProto::Piece& piece, size_t id, std::string_view origin) {
  const auto refuse = [&](std::string_view why) {
    fail(ErrorKind::kInput, "{}: piece {} {}", origin, id, why);
  };
  if (piece.text.empty()) refuse("is empty");
  if (piece.text.size() > kLongestPiece)
    refuse(
        fmt::format("has {} bytes, more than the {} supported", piece.text.size(), kLongestPiece));
  if (piece.text.find('\0') != std::string::npos) refuse("holds a NUL");
  if (find_invalid_utf8(piece.text) != std::string_view::npos) refuse("is not valid UTF-8");
  if (!std::isfinite(piece.score)) refuse(fmt::format("\"{}\" has no finite score", piece.text));
}

void check_pieces(const std::vector<SentencePieceProto::Piece>& pieces, std::string_view origin) {
  if (pieces.empty()) fail(ErrorKind::kInput, "{}: the model has no pieces", origin);
  if (pieces.size() > kMaxVocabularySize) {
    fail(ErrorKind::kInput, "{}: the model has {} pieces, more than the {} supported", origin,
         pieces.size(), kMaxVocabularySize);
  }
  std::unordered_set<std::string_view> seen;
  size_t unknown = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    check_piece(pieces[id], id, origin);
    if (!seen.insert(pieces[id].text).second) {
      fail(ErrorKind::kInput, "{}: piece \"{}\" occurs twice", origin, pieces[id].text);
    }
    unknown += pieces[id].type == SentencePieceProto::PieceType::kUnknown;
  }
  if (unknown != 1) {
    fail(ErrorKind::kInput, "{}: {} pieces stand for the unknown, expected one", origin, unknown);
  }
}

}  // namespace

SentencePieceProto parse_sentencepiece_proto(std::string_view bytes, std::string_view origin) {
  SentencePieceProto proto;
  bool has_trainer = false, has_normalizer = false, has_denormalizer = false;
  MessageReader reader(bytes, 0, origin);
  const auto once = [&](bool& seen) {
    if (seen) reader.refuse("a part occurs twice");
    seen = true;
  };
  while (reader.next()) {
    if (reader.number() == 1) {
      proto.pieces.push_back(parse_piece(reader.message()));
    } else if (reader.number() == 2) {
      once(has_trainer);
      parse_trainer(reader.message(), proto);
    } else if (reader.number() == 3) {
      once(has_normalizer);
      proto.normalizer = parse_normalizer(reader.message());
    } else if (reader.number() == 5) {
      once(has_denormalizer);
      proto.denormalizer = parse_normalizer(reader.message());
    }
  }
  check_pieces(proto.pieces, origin);
  for (const SentencePieceProto::Normalizer* part : {&proto.normalizer, &proto.denormalizer}) {
    if (!part->charsmap.empty()) Charsmap(part->charsmap, "its charsmap", origin);
  }
  return proto;
}

}  // namespace snug
