#include "text/sentencepiece_proto.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <unordered_set>

#include "core/error.h"
#include "core/wire_reader.h"
#include "text/charsmap.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace snug {
namespace {

// The library builds its trie recursively, one call for each byte of a piece.
constexpr size_t kLongestPiece = 512;

// One message, field by field.
class MessageReader {
 public:
  // position: of the message in the file
  MessageReader(std::string_view bytes, size_t position, std::string_view origin)
      : rest_(bytes), end_(position), origin_(origin) {}

  // The next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    begin_ = end_;
    const size_t before = rest_.size();
    const std::optional<WireField> field = take_field(rest_);
    if (!field || field->number == 0) refuse("a field is malformed or cut off");
    field_ = *field;
    end_ += before - rest_.size();
    return true;
  }

  uint64_t number() const { return field_.number; }
  std::string_view bytes() const { return require(Kind::kBytes), field_.bytes; }
  MessageReader message() const { return {bytes(), end_ - field_.bytes.size(), origin_}; }
  bool boolean() const { return require(Kind::kVarint), field_.value != 0; }
  float number_32() const {
    return require(Kind::kFixed32), std::bit_cast<float>(uint32_t(field_.value));
  }
  template <class Enum>
  Enum choice(Enum last, std::string_view name) const {
    require(Kind::kVarint);
    if (field_.value < 1 || field_.value > static_cast<uint64_t>(last)) {
      fail(ErrorKind::kInput, "{}: {} {} is not supported", origin_, name, field_.value);
    }
    return static_cast<Enum>(field_.value);
  }

  [[noreturn]] void refuse(std::string_view why) const {
    fail(ErrorKind::kInput, "{}: not a SentencePiece model: byte {}: {}", origin_, begin_, why);
  }

 private:
  using Kind = WireField::Kind;
  void require(Kind kind) const {
    if (field_.kind != kind) refuse("a field is not of the kind it should be");
  }

  std::string_view rest_;
  size_t begin_ = 0, end_;  // of the field, in the file
  std::string_view origin_;
  WireField field_;
};

SentencePieceProto::Piece parse_piece(MessageReader reader) {
  SentencePieceProto::Piece piece;
  while (reader.next()) {
    if (reader.number() == 1) piece.text = reader.bytes();
    if (reader.number() == 2) piece.score = reader.number_32();
    if (reader.number() == 3) {
      piece.type = reader.choice(SentencePieceProto::PieceType::kByte, "a piece of type");
    }
  }
  return piece;
}

void parse_trainer(MessageReader reader, SentencePieceProto& proto) {
  while (reader.next()) {
    if (reader.number() == 3) {
      proto.model_type = reader.choice(SentencePieceProto::ModelType::kChar, "model type");
    }
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
  if (piece.text.size() > kLongestPiece) {
    refuse(
        fmt::format("has {} bytes, more than the {} supported", piece.text.size(), kLongestPiece));
  }
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
