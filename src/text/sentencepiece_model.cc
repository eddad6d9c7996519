#include "text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

constexpr std::string_view kSpace = "\u2581";

// No piece reaches from one word into the next.
bool keeps_to_words(const SentencePieceProto& proto) {
  const SentencePieceProto::Normalizer& normalizer = proto.normalizer;
  return normalizer.add_dummy_prefix && normalizer.remove_extra_whitespaces &&
         normalizer.escape_whitespaces && !proto.treat_whitespace_as_suffix &&
         std::none_of(proto.pieces.begin(), proto.pieces.end(), [](const auto& piece) {
           return piece.text.find(kSpace, 1) != std::string::npos ||
                  piece.text.find(' ') != std::string::npos;
         });
}

}  // namespace

struct SentencePieceModel::Library {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::string bytes, std::string_view origin)
    : bytes_(std::move(bytes)),
      proto_(parse_sentencepiece_proto(bytes_, origin)),
      library_(std::make_unique<Library>()) {
  if (!proto_.normalizer.charsmap.empty()) {
    charsmap_ = Charsmap(proto_.normalizer.charsmap, "its charsmap", origin);
  }
  const auto unknown = std::find_if(proto_.pieces.begin(), proto_.pieces.end(),
                                    [](const SentencePieceProto::Piece& piece) {
                                      return piece.type == SentencePieceProto::PieceType::kUnknown;
                                    });
  unknown_id_ = static_cast<int32_t>(unknown - proto_.pieces.begin());
  allows_cuts_ = keeps_to_words(proto_);
  try {
    const auto status = library_->processor.LoadFromSerializedProto(bytes_);
    if (!status.ok()) fail(ErrorKind::kInput, "{}: {}", origin, status.message());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::kInput, "{}: the SentencePiece library refuses it: {}", origin, error.what());
  }
  SNUG_CHECK(size_t(library_->processor.GetPieceSize()) == proto_.pieces.size());
}

SentencePieceModel::~SentencePieceModel() = default;
SentencePieceModel::SentencePieceModel(SentencePieceModel&&) noexcept = default;

void SentencePieceModel::encode(std::string_view text, std::vector<Found>& out) const {
  sentencepiece::ImmutableSentencePieceText result;
  const auto status = library_->processor.Encode(text, result.mutable_proto());
  if (!status.ok()) {
    fail(ErrorKind::kInput, "SentencePiece cannot encode this text: {}", status.message());
  }
  out.clear();
  for (size_t i = 0; i < result.pieces_size(); ++i) {
    const auto piece = result.pieces(static_cast<int>(i));
    out.push_back({static_cast<int32_t>(piece.id()), piece.begin(), piece.end()});
  }
}

}  // namespace snug
