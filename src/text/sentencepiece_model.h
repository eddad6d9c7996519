// The SentencePiece library behind a door: a model that has been looked through before the library
// sees it, and texts divided into its pieces. Nothing is added or changed here; that is what a
// tokenizer's family does.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/charsmap.h"
#include "text/sentencepiece_proto.h"

namespace snug {

class SentencePieceModel {
 public:
  // Of the contents of a model file; errors are kInput.
  SentencePieceModel(std::string bytes, std::string_view origin);
  ~SentencePieceModel();
  SentencePieceModel(SentencePieceModel&&) noexcept;

  struct Found {
    int32_t id = -1;
    size_t begin = 0, end = 0;  // bytes of the text; without what only normalisation added
  };
  // Replaces `out`. Safe to call from several threads.
  void encode(std::string_view text, std::vector<Found>& out) const;

  const std::string& bytes() const { return bytes_; }
  const SentencePieceProto& proto() const { return proto_; }
  const Charsmap& charsmap() const { return charsmap_; }
  int32_t unknown_id() const { return unknown_id_; }
  // Whether a text may be cut at a space between two words, the space going to neither.
  bool allows_cuts() const { return allows_cuts_; }

 private:
  struct Library;

  std::string bytes_;
  SentencePieceProto proto_;
  Charsmap charsmap_;
  int32_t unknown_id_ = -1;
  bool allows_cuts_ = false;
  std::unique_ptr<Library> library_;
};

}  // namespace snug
