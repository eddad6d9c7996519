#include "text/rewriter.h"

#include <algorithm>

#include "text/scratch.h"

namespace snug {
namespace {

NormalizedText& spare() {
  static thread_local NormalizedText text;
  return text;
}

}  // namespace

Rewriter::Rewriter(NormalizedText& text) : text_(text), out_(spare()) {
  out_.clear();
  out_.with_origin = text.with_origin;
}

Rewriter::~Rewriter() {
  text_.bytes.swap(out_.bytes);
  text_.origin.swap(out_.origin);
  release_if_large(out_.bytes);
  release_if_large(out_.origin);
}

void Rewriter::swallow() {
  if (place_ < text_.bytes.size()) next_code_point(text_.bytes, place_);
}

void Rewriter::put(char32_t c, int change) {
  uint32_t origin = 0;
  if (text_.with_origin && !text_.origin.empty()) {
    const size_t place = change > 0 && place_ > 0 ? place_ - 1 : place_;
    origin = text_.origin[std::min(place, text_.origin.size() - 1)];
  }
  for (int i = change; i <= 0; ++i) swallow();
  append_utf8(out_.bytes, c);
  if (out_.with_origin) out_.origin.resize(out_.bytes.size(), origin);
}

void Rewriter::copy_to(size_t end) {
  out_.bytes.append(text_.bytes, place_, end - place_);
  if (out_.with_origin) {
    out_.origin.insert(out_.origin.end(), text_.origin.begin() + place_,
                       text_.origin.begin() + end);
  }
  place_ = end;
}

}  // namespace snug
