#include "data/tag_scheme.h"

#include "core/error.h"

namespace snug {
namespace {

constexpr std::string_view kPrefixes = "BIESLU";

// Whether an entity of the type of `tag` is going on behind `before`.
bool continues(const Tag& before, const Tag& tag) {
  return (before.prefix == 'B' || before.prefix == 'I') && before.type == tag.type;
}

// Whether `before` is in an entity of the type of `tag`: IOB1 needs its B-X only behind such a word.
bool touches(const Tag& before, const Tag& tag) {
  return before.prefix != 0 && before.prefix != 'O' && before.type == tag.type;
}

}  // namespace

std::string_view scheme_name(TagScheme scheme) {
  switch (scheme) {
    case TagScheme::kNone:
      return "none";
    case TagScheme::kIo:
      return "IO";
    case TagScheme::kIob1:
      return "IOB1";
    case TagScheme::kIob2:
      return "IOB2";
    case TagScheme::kBioes:
      return "BIOES";
    case TagScheme::kBilou:
      return "BILOU";
  }
  return "";
}

Tag parse_tag(std::string_view tag) {
  if (tag == "O") return {.prefix = 'O'};
  if (tag.empty() || kPrefixes.find(tag[0]) == kPrefixes.npos) return {};
  if (tag.size() == 1) return {.prefix = tag[0]};
  if (tag[1] != '-') return {};
  return {.prefix = tag[0], .type = tag.substr(2)};
}

TagScheme scheme_of(std::span<const std::string> labels) {
  std::string prefixes;
  for (const std::string& label : labels) {
    const Tag tag = parse_tag(label);
    if (tag.prefix == 0) return TagScheme::kNone;
    if (tag.prefix != 'O') prefixes += tag.prefix;
  }
  const auto has = [&](const char* any) { return prefixes.find_first_of(any) != prefixes.npos; };
  if (has("ES")) return has("LU") ? TagScheme::kNone : TagScheme::kBioes;
  if (has("LU")) return TagScheme::kBilou;
  if (has("B")) return TagScheme::kIob2;
  return has("I") ? TagScheme::kIo : TagScheme::kNone;
}

void TagSchemeFinder::see(std::optional<Seen>& where, std::string_view tag, uint64_t line, size_t word) const {
  if (!where) where = Seen{std::string(tag), line, word};
}

std::string TagSchemeFinder::at(const Seen& seen) const {
  return fmt::format("\"{}\" (sentence of line {}, word {})", std::string_view(seen.tag).substr(0, 60), seen.line,
                     seen.word + 1);
}

void TagSchemeFinder::add(std::span<const Word> words, uint64_t line) {
  Tag before{.prefix = 'O'};
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view label = words[i].label;
    if (label.empty()) {
      before = Tag{.prefix = 'O'};
      continue;
    }
    const Tag tag = parse_tag(label);
    if (tag.prefix == 0) {
      see(other_, label, line, i);
    } else if (tag.prefix != 'O') {
      if (label.size() == 2) {
        fail(ErrorKind::kInput, "{}: line {}: word {} of the sentence has the tag \"{}\", expected a type behind the '-'",
             file_, line, i + 1, label);
      }
      see(label.size() == 1 ? letter_ : entity_, label, line, i);
      if (tag.prefix == 'E' || tag.prefix == 'S') see(bioes_, label, line, i);
      if (tag.prefix == 'L' || tag.prefix == 'U') see(bilou_, label, line, i);
      stray_inside_ += tag.prefix == 'I' && !continues(before, tag);
      if (tag.prefix == 'B' && !touches(before, tag)) not_iob1_ = true;
      any_b_ |= tag.prefix == 'B';
    }
    before = tag;
  }
}

TagScheme TagSchemeFinder::finish() const {
  if (entity_ && other_) {
    fail(ErrorKind::kInput,
         "{}: tag {} has no prefix that is known, but {} has; expected O, B- and I- (IOB1, IOB2), with E- and S- (BIOES) or "
         "with L- and U- (BILOU), in front of every type",
         file_, at(*other_), at(*entity_));
  }
  if (other_ || (!entity_ && !letter_)) return TagScheme::kNone;
  if (bioes_ && bilou_) {
    if (!entity_) return TagScheme::kNone;
    fail(ErrorKind::kInput, "{}: tag {} is of BIOES, but {} of BILOU; expected one of the two", file_, at(*bioes_),
         at(*bilou_));
  }
  if (bioes_) return TagScheme::kBioes;
  if (bilou_) return TagScheme::kBilou;
  if (!any_b_) return TagScheme::kIo;
  return stray_inside_ > 0 && !not_iob1_ ? TagScheme::kIob1 : TagScheme::kIob2;
}

std::span<const std::string_view> Iob2Labels::of(std::span<const Word> words) {
  labels_.clear();
  changed_.clear();
  size_t bytes = 0;
  for (const Word& word : words) bytes += word.label.size();
  changed_.reserve(bytes);  // so that views into it stay
  Tag before{.prefix = 'O'};
  for (const Word& word : words) {
    std::string_view label = word.label;
    const Tag tag = parse_tag(label);
    if (tag.prefix == 'I' && !tag.type.empty() && !continues(before, tag)) {
      const size_t begin = changed_.size();
      changed_ += 'B';
      changed_ += label.substr(1);
      label = std::string_view(changed_).substr(begin);
    }
    labels_.push_back(label);
    before = tag;
  }
  return labels_;
}

}  // namespace snug
