// The general normalizers of tokenizer.json, one after another: Replace, NFD, NFKD, NFC, NFKC, Nmt,
// StripAccents, Lowercase, Precompiled, Strip, Prepend, and sequences of them. As in the reference,
// each byte of the result remembers one code point of the original: that of the character it
// replaces, and of the one before where it was added.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_fields.h"
#include "text/normalizer.h"

namespace snug {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual void apply(NormalizedText& text) const = 0;
  // Whether a text may be cut at a single space between two ASCII letters without a difference.
  virtual bool allows_cuts() const { return true; }
};

class NormalizerSteps {
 public:
  NormalizerSteps() = default;  // none
  // The object "normalizer"; what is not supported is refused by name (kInput).
  NormalizerSteps(const JsonFields& fields, std::string_view origin);

  void apply(NormalizedText& text) const;
  std::string normalize(std::string_view text) const;
  bool allows_cuts() const;

  // For tokenizers whose rules are not in a tokenizer.json.
  void add(std::unique_ptr<NormalizerStep> step) { steps_.push_back(std::move(step)); }

 private:
  void parse(const JsonFields& fields, std::string_view origin, int depth);

  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

// The text as it is, with U+FFFD for what is ill-formed; `code_point` is the index of its first
// code point, and moves past its last.
void assign_text(std::string_view text, uint32_t& code_point, NormalizedText& out);

std::unique_ptr<NormalizerStep> make_replace(std::string pattern, std::string content);
std::unique_ptr<NormalizerStep> make_collapse_spaces(std::string content);  // runs of two or more
std::unique_ptr<NormalizerStep> make_decompose_compatibly();                // NFKD
std::unique_ptr<NormalizerStep> make_strip_accents();
std::unique_ptr<NormalizerStep> make_lowercase();

}  // namespace snug
