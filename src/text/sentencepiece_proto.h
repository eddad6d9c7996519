// What a SentencePiece model file (a protobuf message "ModelProto") says, read by hand: the library
// takes a model at its word, so everything that could lead it astray is looked at before.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct SentencePieceProto {
  enum class PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  enum class ModelType { kUnigram = 1, kBpe, kWord, kChar };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  // How texts are normalised; a space is a piece's "▁" afterwards.
  struct Normalizer {
    std::string charsmap;  // as Charsmap reads it; empty: no rules
    bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  };

  std::vector<Piece> pieces;  // in the order of ids
  ModelType model_type = ModelType::kUnigram;
  bool treat_whitespace_as_suffix = false, byte_fallback = false;
  Normalizer normalizer, denormalizer;
};

// Errors (kInput) name `origin`, and the byte where a malformed field begins.
SentencePieceProto parse_sentencepiece_proto(std::string_view bytes, std::string_view origin);

}  // namespace snug
