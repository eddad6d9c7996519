#include "text/normalizer.h"

#include <algorithm>

namespace snug {

// Carries code points that are not plain ASCII through the steps. Non-starters wait in `marks_`
// until their order is known.
class Normalizer::Writer {
 public:
  Writer(const Normalizer& normalizer, NormalizedText& out) : normalizer_(normalizer), out_(out) {}

  void write(char32_t c, uint32_t origin) {
    const NormalizerOptions& options = normalizer_.options_;
    const uint16_t flags = normalizer_.chars_[c];
    if (options.clean_text) {
      if (flags & kCharDropped) return;
      if (flags & kCharSpace) return decompose_into_marks(' ', 0, origin);
    }
    const bool spaced = options.handle_chinese_chars && (flags & kCharCjk);
    if (spaced) decompose_into_marks(' ', 0, origin);
    decompose_into_marks(c, flags, origin);
    if (spaced) decompose_into_marks(' ', 0, origin);
  }

  // Writes the waiting marks, sorted by combining class. The reference keeps positions, not
  // characters, tied to their origins here: the first mark written takes the origin of the first
  // mark read.
  void flush() {
    if (marks_.empty()) return;
    if (marks_.size() > 1) {
      std::stable_sort(marks_.begin(), marks_.end(), [](const Mark& a, const Mark& b) {
        return a.combining_class < b.combining_class;
      });
    }
    size_t next = 0;
    for (const Mark& mark : marks_) {
      if (!mark.inserted) last_origin_ = origins_[next++];
      put(mark.c, normalizer_.chars_[mark.c], last_origin_);
    }
    marks_.clear();
    origins_.clear();
  }

 private:
  struct Mark {
    char32_t c;
    uint8_t combining_class;
    bool inserted;  // by decomposition, after its first code point
  };

  void decompose_into_marks(char32_t c, uint16_t flags, uint32_t origin) {
    if (!normalizer_.options_.strips_accents()) return put(c, flags, origin);
    if (!(flags & (kCharDecomposes | kCharNonStarter))) {
      flush();
      last_origin_ = origin;
      return put(c, flags, origin);
    }
    CodePoints parts{c};
    const size_t count = (flags & kCharDecomposes) ? decompose(c, parts) : 1;
    for (size_t i = 0; i < count; ++i) place(parts[i], origin, i > 0);
  }

  void place(char32_t c, uint32_t origin, bool inserted) {
    const uint16_t flags = normalizer_.chars_[c];
    if (flags & kCharNonStarter) {
      marks_.push_back({c, combining_class(c), inserted});
      if (!inserted) origins_.push_back(origin);
      return;
    }
    flush();
    last_origin_ = origin;
    put(c, flags, origin);
  }

  void put(char32_t c, uint16_t flags, uint32_t origin) {
    if ((flags & kCharMark) && normalizer_.options_.strips_accents()) return;
    CodePoints lower{c};
    const size_t count =
        normalizer_.options_.lowercase && (flags & kCharUpper) ? to_lower_case(c, lower) : 1;
    for (size_t i = 0; i < count; ++i) append_utf8(out_.bytes, lower[i]);
    if (out_.with_origin) out_.origin.resize(out_.bytes.size(), origin);
  }

  const Normalizer& normalizer_;
  NormalizedText& out_;
  std::vector<Mark> marks_;
  std::vector<uint32_t> origins_;
  uint32_t last_origin_ = 0;
};

Normalizer::Normalizer(const NormalizerOptions& options)
    : options_(options), chars_(CharTable::get()) {
  for (char32_t c = 1; c < 128; ++c) {
    const uint16_t flags = chars_[c];
    if (options.clean_text && (flags & kCharDropped)) continue;
    const bool space = options.clean_text && (flags & kCharSpace);
    const bool upper = options.lowercase && (flags & kCharUpper);
    ascii_[c] = space ? ' ' : static_cast<char>(upper ? c + ('a' - 'A') : c);
  }
}

// The run of ASCII from `pos`, without the characters that cleaning drops. Returns where it ends.
size_t Normalizer::append_ascii(std::string_view text, size_t pos, uint32_t& code_point,
                                NormalizedText& out) const {
  const auto stops = [this](char byte) { return ascii_[static_cast<uint8_t>(byte)] == 0; };
  const size_t end = std::find_if(text.begin() + pos, text.end(), stops) - text.begin();
  const size_t count = end - pos, old = out.bytes.size();
  out.bytes.resize(old + count);
  for (size_t i = 0; i < count; ++i) {
    out.bytes[old + i] = ascii_[static_cast<uint8_t>(text[pos + i])];
  }
  if (out.with_origin) {
    out.origin.resize(old + count);
    for (size_t i = 0; i < count; ++i) out.origin[old + i] = code_point + static_cast<uint32_t>(i);
  }
  code_point += static_cast<uint32_t>(count);
  return end;
}

void Normalizer::append(std::string_view text, uint32_t& code_point, NormalizedText& out) const {
  Writer writer(*this, out);
  for (size_t pos = 0; pos < text.size();) {
    if (ascii_[static_cast<uint8_t>(text[pos])] != 0) {
      writer.flush();
      pos = append_ascii(text, pos, code_point, out);
    } else {
      writer.write(next_code_point(text, pos), code_point++);
    }
  }
  writer.flush();
}

std::string Normalizer::normalize(std::string_view text) const {
  NormalizedText out;
  uint32_t code_point = 0;
  append(text, code_point, out);
  return out.bytes;
}

size_t Normalizer::find_cut(std::string_view text, size_t from) const {
  for (size_t pos = from; pos < text.size();) {
    const uint8_t byte = static_cast<uint8_t>(text[pos]);
    const size_t start = pos;
    if (byte < 0x80) {
      ++pos;
      if (ascii_[byte] != 0 && (chars_[byte] & (kCharSpace | kCharPunct))) return start;
    } else if ((byte & 0xC0) == 0x80) {
      ++pos;  // `from` may point into the middle of a character
    } else if ((chars_[next_code_point(text, pos)] & kCharCjk) && options_.handle_chinese_chars) {
      return start;
    }
  }
  return text.size();
}

}  // namespace snug
