// BERT's text normalisation: clean, space out ideographs, strip accents, lower case, in this order.
// Every byte of the result remembers the code point of the original it came from; since no step
// merges characters, one number is enough.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace snug {

struct NormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  std::optional<bool> strip_accents = std::nullopt;  // not set: as lowercase
  bool lowercase = true;

  bool strips_accents() const { return strip_accents.value_or(lowercase); }
  bool operator==(const NormalizerOptions&) const = default;
};

// Always well-formed UTF-8.
struct NormalizedText {
  std::string bytes;
  std::vector<uint32_t>
      origin;  // for each byte: index of the original code point; empty unless with_origin
  bool with_origin = false;

  void clear() {
    bytes.clear();
    origin.clear();
  }
};

class Normalizer {
 public:
  explicit Normalizer(const NormalizerOptions& options);

  const NormalizerOptions& options() const { return options_; }
  // Appends `text` normalised; `code_point` is the index of its first code point, and moves past
  // its last.
  void append(std::string_view text, uint32_t& code_point, NormalizedText& out) const;
  std::string normalize(std::string_view text) const;
  // A position in [from, text.size()] at which the text may be cut without changing the result or
  // joining two words.
  size_t find_cut(std::string_view text, size_t from) const;

 private:
  class Writer;

  size_t append_ascii(std::string_view text, size_t pos, uint32_t& code_point,
                      NormalizedText& out) const;

  NormalizerOptions options_;
  const CharTable& chars_;
  std::array<char, 256> ascii_{};  // the byte it becomes; 0: not handled by the fast path
};

}  // namespace snug
