#include "text/normalizer_steps.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"
#include "text/charsmap.h"
#include "text/rewriter.h"

namespace snug {
namespace {

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return c & 0x80; });
}

class Replace final : public NormalizerStep {
 public:
  Replace(std::string pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(NormalizedText& text) const override {
    size_t found = text.bytes.find(pattern_);
    if (found == std::string::npos) return;
    Rewriter out(text);
    for (; found != std::string::npos; found = text.bytes.find(pattern_, found + pattern_.size())) {
      out.copy_to(found);
      out.skip_to(found + pattern_.size());
      for (size_t pos = 0; pos < content_.size();) out.put(next_code_point(content_, pos), 1);
    }
    out.copy_to(text.bytes.size());
  }
  bool allows_cuts() const override { return pattern_.find(' ') == std::string::npos; }

 private:
  std::string pattern_, content_;
};

// The pattern " {2,}".
class CollapseSpaces final : public NormalizerStep {
 public:
  explicit CollapseSpaces(std::string content) : content_(std::move(content)) {}

  void apply(NormalizedText& text) const override {
    size_t found = text.bytes.find("  ");
    if (found == std::string::npos) return;
    Rewriter out(text);
    while (found != std::string::npos) {
      const size_t end = std::min(text.bytes.find_first_not_of(' ', found), text.bytes.size());
      out.copy_to(found);
      out.skip_to(end);
      for (size_t pos = 0; pos < content_.size();) out.put(next_code_point(content_, pos), 1);
      found = text.bytes.find("  ", end);
    }
    out.copy_to(text.bytes.size());
  }

 private:
  std::string content_;
};

// Keeps the characters that keep(c) says.
template <class Keep>
void filter(NormalizedText& text, Keep keep) {
  Rewriter out(text);
  for (size_t pos = 0; pos < text.bytes.size();) {
    const size_t begin = pos;
    if (keep(next_code_point(text.bytes, pos))) continue;
    out.copy_to(begin);
    out.skip_to(pos);
  }
  out.copy_to(text.bytes.size());
}

class StripAccents final : public NormalizerStep {
 public:
  void apply(NormalizedText& text) const override {
    if (is_ascii(text.bytes)) return;
    const CharTable& chars = CharTable::get();
    filter(text, [&](char32_t c) { return !(chars[c] & kCharAnyMark); });
  }
};

class Lowercase final : public NormalizerStep {
 public:
  void apply(NormalizedText& text) const override {
    if (is_ascii(text.bytes)) {
      for (char& c : text.bytes) c += c >= 'A' && c <= 'Z' ? 'a' - 'A' : 0;
      return;
    }
    const CharTable& chars = CharTable::get();
    Rewriter out(text);
    for (size_t pos = 0; pos < text.bytes.size();) {
      const char32_t c = next_code_point(text.bytes, pos);
      CodePoints lower{c};
      const size_t count = chars[c] & kCharUpper ? to_lower_case(c, lower) : 1;
      for (size_t i = 0; i < count; ++i) out.put(lower[i], i > 0);
    }
  }
};

// What SentencePiece's "nmt" rules do beside NFKC: control characters go, odd spaces become spaces.
class Nmt final : public NormalizerStep {
 public:
  void apply(NormalizedText& text) const override {
    filter(text, [](char32_t c) {
      return !((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
               c == 0x8F || c == 0x9F);
    });
    Rewriter out(text);
    for (size_t pos = 0; pos < text.bytes.size();) {
      const char32_t c = next_code_point(text.bytes, pos);
      out.put(is_odd_space(c) ? U' ' : c, 0);
    }
  }

 private:
  static bool is_odd_space(char32_t c) {
    return c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  }
};

struct Change {
  char32_t c;
  int change;
};

// The four normal forms of Unicode.
class NormalForm final : public NormalizerStep {
 public:
  struct Options {
    bool compatible = false, composed = false;
  };
  explicit NormalForm(Options options) : options_(options) {}

  void apply(NormalizedText& text) const override {
    if (is_ascii(text.bytes)) return;
    std::vector<Change> changes = decomposed(text.bytes);
    if (options_.composed) changes = recomposed(changes);
    Rewriter out(text);
    for (const Change& change : changes) out.put(change.c, change.change);
  }

 private:
  std::vector<Change> decomposed(std::string_view text) const {
    const CharTable& chars = CharTable::get();
    std::vector<Change> changes;
    changes.reserve(text.size());
    size_t marks = 0;  // where the non-starters at the end begin
    const auto sort_marks = [&] {
      std::stable_sort(changes.begin() + marks, changes.end(),
                       [](const Change& a, const Change& b) {
                         return combining_class(a.c) < combining_class(b.c);
                       });
    };
    for (size_t pos = 0; pos < text.size();) {
      const char32_t c = next_code_point(text, pos);
      LongCodePoints parts{c};
      size_t count = 1;
      if (c >= 0x80 && options_.compatible) {
        count = decompose_compatibly(c, parts);
      } else if (chars[c] & kCharDecomposes) {
        CodePoints canonical;
        count = decompose(c, canonical);
        std::copy_n(canonical.begin(), count, parts.begin());
      }
      for (size_t i = 0; i < count; ++i) {
        const bool starter = !(chars[parts[i]] & kCharNonStarter);
        if (starter && marks < changes.size()) sort_marks();
        changes.push_back({parts[i], i > 0});
        if (starter) marks = changes.size();
      }
    }
    sort_marks();
    return changes;
  }

  // Each mark joins the last starter unless one of its own class, or a higher one, stands between.
  static std::vector<Change> recomposed(const std::vector<Change>& changes) {
    const CharTable& chars = CharTable::get();
    std::vector<Change> result;
    size_t starter = std::string::npos;
    uint8_t last_class = 0;
    for (const Change& next : changes) {
      const uint8_t its_class = chars[next.c] & kCharNonStarter ? combining_class(next.c) : 0;
      const bool adjacent = starter + 1 == result.size();
      if (starter != std::string::npos && (adjacent || last_class < its_class)) {
        if (const char32_t both = compose(result[starter].c, next.c)) {
          result[starter] = {both, result[starter].change + next.change - 1};
          continue;
        }
      }
      if (its_class == 0) starter = result.size();
      last_class = its_class;
      result.push_back(next);
    }
    return result;
  }

  Options options_;
};

int break_property(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_GRAPHEME_CLUSTER_BREAK);
}

bool is_pictographic(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_EXTENDED_PICTOGRAPHIC);
}

bool breaks_always(int property) {
  return property == U_GCB_CONTROL || property == U_GCB_CR || property == U_GCB_LF;
}

// Where the grapheme cluster at `pos` ends. Hangul syllables of several parts, flags and conjuncts
// count as single characters: no rule of a charsmap is as long as they are.
size_t cluster_end(std::string_view text, size_t pos) {
  size_t end = pos;
  const char32_t first = next_code_point(text, end);
  if (first == '\r' && end < text.size() && text[end] == '\n') return end + 1;
  if (end == text.size() || (first < 0x80 && !(text[end] & 0x80))) return end;
  int before = break_property(first);
  bool pictographic = is_pictographic(first);
  while (end < text.size() && !breaks_always(before)) {
    size_t next_end = end;
    const char32_t next = next_code_point(text, next_end);
    const int after = break_property(next);
    const bool joins = after == U_GCB_EXTEND || after == U_GCB_ZWJ || after == U_GCB_SPACING_MARK ||
                       (before == U_GCB_PREPEND && !breaks_always(after)) ||
                       (before == U_GCB_ZWJ && pictographic && is_pictographic(next));
    if (!joins) break;
    if (after != U_GCB_EXTEND && after != U_GCB_ZWJ) pictographic = is_pictographic(next);
    before = after;
    end = next_end;
  }
  return end;
}

// SentencePiece's own rules, as the reference applies them: a short grapheme cluster with a rule
// for its beginning is replaced as a whole, and otherwise each character by itself.
class Precompiled final : public NormalizerStep {
 public:
  explicit Precompiled(Charsmap rules) : rules_(std::move(rules)) {
    for (char c = 1; c > 0 && c < 127; ++c) {
      plain_[c] = c != '\r' && !rules_.shortest(std::string_view(&c, 1));
    }
  }

  void apply(NormalizedText& text) const override {
    const auto is_plain = [&](char c) { return plain_[static_cast<uint8_t>(c)]; };
    if (std::all_of(text.bytes.begin(), text.bytes.end(), is_plain)) return;
    std::vector<Change> changes;
    changes.reserve(text.bytes.size());
    for (size_t pos = 0; pos < text.bytes.size();) {
      const size_t end = cluster_end(text.bytes, pos);
      const std::string_view cluster = std::string_view(text.bytes).substr(pos, end - pos);
      pos = end;
      if (cluster.size() >= kLongestCluster || !replace(cluster, changes)) {
        for (size_t i = 0; i < cluster.size();) {
          const size_t begin = i;
          const char32_t c = next_code_point(cluster, i);
          if (!replace(cluster.substr(begin, i - begin), changes)) changes.push_back({c, 0});
        }
      }
    }
    Rewriter out(text);
    for (const Change& change : changes) out.put(change.c, change.change);
  }

 private:
  static constexpr size_t kLongestCluster = 6;  // bytes

  // What becomes fewer characters is booked on the last one written. At the very beginning there is
  // none, and the origins stay shifted from there on: so it is in the reference.
  bool replace(std::string_view part, std::vector<Change>& changes) const {
    const auto rule = rules_.shortest(part);
    if (!rule) return false;
    const int before = static_cast<int>(count_code_points(part));
    int after = 0;
    for (size_t pos = 0; pos < rule->replacement.size(); ++after) {
      changes.push_back({next_code_point(rule->replacement, pos), after >= before});
    }
    if (after < before && !changes.empty()) changes.back().change += after - before;
    return true;
  }

  Charsmap rules_;
  std::array<bool, 256> plain_{};
};

class Strip final : public NormalizerStep {
 public:
  struct Sides {
    bool left = false, right = false;
  };
  explicit Strip(Sides sides) : sides_(sides) {}

  void apply(NormalizedText& text) const override {
    const CharTable& chars = CharTable::get();
    const size_t size = text.bytes.size();
    size_t begin = size, end = 0;  // of what is not white space
    for (size_t pos = 0; pos < size;) {
      const size_t start = pos;
      if (chars[next_code_point(text.bytes, pos)] & kCharSpace) continue;
      begin = std::min(begin, start);
      end = pos;
    }
    if (!sides_.right) end = size;
    if (!sides_.left) begin = 0;
    Rewriter out(text);
    out.skip_to(std::min(begin, end));
    out.copy_to(end);
  }
  bool allows_cuts() const override { return false; }

 private:
  Sides sides_;
};

class Prepend final : public NormalizerStep {
 public:
  explicit Prepend(std::string added) : added_(std::move(added)) {}

  void apply(NormalizedText& text) const override {
    if (text.bytes.empty()) return;
    text.bytes.insert(0, added_);
    if (text.with_origin) {
      text.origin.insert(text.origin.begin(), added_.size(), uint32_t{text.origin.front()});
    }
  }
  bool allows_cuts() const override { return false; }

 private:
  std::string added_;
};

std::unique_ptr<NormalizerStep> parse_replace(const JsonFields& fields, std::string_view origin) {
  fields.allow_only({"type", "pattern", "content"});
  const JsonFields pattern = fields.object("pattern");
  pattern.allow_only({"String", "Regex"});
  if (!pattern.has("Regex")) {
    const std::string text = pattern.text("String");
    if (text.empty()) pattern.refuse("String", "a text that is not empty");
    return make_replace(text, fields.text("content"));
  }
  if (pattern.text("Regex") != " {2,}") {
    fail(ErrorKind::kInput, "{}: unsupported {} \"{}\" (supported: \" {{2,}}\", and any String)",
         origin, pattern.name("Regex"), pattern.text("Regex"));
  }
  return make_collapse_spaces(fields.text("content"));
}

std::unique_ptr<NormalizerStep> parse_precompiled(const JsonFields& fields,
                                                  std::string_view origin) {
  fields.allow_only({"type", "precompiled_charsmap"});
  const auto blob = decode_base64(fields.text("precompiled_charsmap"));
  if (!blob) fields.refuse("precompiled_charsmap", "base64");
  return std::make_unique<Precompiled>(
      Charsmap(*blob, fields.name("precompiled_charsmap"), origin));
}

// Those without settings; nullptr for another type.
std::unique_ptr<NormalizerStep> make_plain(std::string_view type) {
  if (type == "NFC") return std::make_unique<NormalForm>(NormalForm::Options{.composed = true});
  if (type == "NFD") return std::make_unique<NormalForm>(NormalForm::Options{});
  if (type == "NFKC") return std::make_unique<NormalForm>(NormalForm::Options{true, true});
  if (type == "NFKD") return make_decompose_compatibly();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "StripAccents") return make_strip_accents();
  if (type == "Lowercase") return make_lowercase();
  return nullptr;
}

constexpr int kDeepestSequence = 8;

}  // namespace

std::unique_ptr<NormalizerStep> make_replace(std::string pattern, std::string content) {
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}

std::unique_ptr<NormalizerStep> make_collapse_spaces(std::string content) {
  return std::make_unique<CollapseSpaces>(std::move(content));
}

std::unique_ptr<NormalizerStep> make_decompose_compatibly() {
  return std::make_unique<NormalForm>(NormalForm::Options{.compatible = true});
}

std::unique_ptr<NormalizerStep> make_strip_accents() { return std::make_unique<StripAccents>(); }

std::unique_ptr<NormalizerStep> make_lowercase() { return std::make_unique<Lowercase>(); }

NormalizerSteps::NormalizerSteps(const JsonFields& fields, std::string_view origin) {
  parse(fields, origin, 0);
}

void NormalizerSteps::parse(const JsonFields& fields, std::string_view origin, int depth) {
  const std::string type = fields.text("type");
  if (std::unique_ptr<NormalizerStep> plain = make_plain(type)) {
    fields.allow_only({"type"});
    add(std::move(plain));
  } else if (type == "Sequence" && depth < kDeepestSequence) {
    fields.allow_only({"type", "normalizers"});
    size_t index = 0;
    for (const Json& entry : fields.array("normalizers")) {
      parse(JsonFields(entry, origin, fmt::format("{}[{}]", fields.name("normalizers"), index++)),
            origin, depth + 1);
    }
  } else if (type == "Replace") {
    add(parse_replace(fields, origin));
  } else if (type == "Precompiled") {
    add(parse_precompiled(fields, origin));
  } else if (type == "Strip") {
    fields.allow_only({"type", "strip_left", "strip_right"});
    add(std::make_unique<Strip>(
        Strip::Sides{fields.boolean("strip_left"), fields.boolean("strip_right")}));
  } else if (type == "Prepend") {
    fields.allow_only({"type", "prepend"});
    add(std::make_unique<Prepend>(fields.text("prepend")));
  } else {
    fail(ErrorKind::kInput,
         "{}: unsupported normalizer \"{}\" (supported: Sequence, Replace, NFC, NFD, NFKC, NFKD, "
         "Nmt, StripAccents, Lowercase, Precompiled, Strip, Prepend)",
         origin, type);
  }
}

void NormalizerSteps::apply(NormalizedText& text) const {
  for (const auto& step : steps_) step->apply(text);
}

std::string NormalizerSteps::normalize(std::string_view text) const {
  NormalizedText out;
  uint32_t code_point = 0;
  assign_text(text, code_point, out);
  apply(out);
  return out.bytes;
}

bool NormalizerSteps::allows_cuts() const {
  return std::all_of(steps_.begin(), steps_.end(),
                     [](const auto& step) { return step->allows_cuts(); });
}

void assign_text(std::string_view text, uint32_t& code_point, NormalizedText& out) {
  out.clear();
  if (is_ascii(text)) {
    out.bytes = text;
    if (out.with_origin) {
      out.origin.resize(text.size());
      std::iota(out.origin.begin(), out.origin.end(), code_point);
    }
    code_point += static_cast<uint32_t>(text.size());
    return;
  }
  for (size_t pos = 0; pos < text.size(); ++code_point) {
    append_utf8(out.bytes, next_code_point(text, pos));
    if (out.with_origin) out.origin.resize(out.bytes.size(), code_point);
  }
}

}  // namespace snug
