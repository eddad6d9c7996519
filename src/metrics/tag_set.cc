#include "metrics/tag_set.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "text/unicode.h"

namespace snug {
namespace {

constexpr int32_t kNoType = -1;  // of what precedes the first word: differs from all

bool any_of(char c, std::string_view set) { return set.find(c) != set.npos; }

// Pairs of neighbours: the prefixes of both words, and what holds for their types.
enum class Types { kAny, kSame, kDifferent };
struct Pattern {
  std::string_view previous, current;
  Types types;
};
struct Rules {
  std::string_view name, prefixes;
  std::vector<Pattern> start, inside, end;  // of an entity; `end` looks at the word behind it
};

const Rules& rules_of(TagScheme scheme) {
  static const Rules iob1 = {
      "IOB1",
      "IOB",
      {{"OB", "I", Types::kAny}, {"I", "I", Types::kDifferent}, {"IB", "B", Types::kSame}},
      {{"BI", "I", Types::kSame}},
      {{"IB", "O", Types::kAny},
       {"I", "B", Types::kAny},
       {"IB", "I", Types::kDifferent},
       {"B", "B", Types::kSame}}};
  static const Rules iob2 = {"IOB2",
                             "IOB",
                             {{"IOB", "B", Types::kAny}},
                             {{"BI", "I", Types::kSame}},
                             {{"IB", "OB", Types::kAny}, {"IB", "I", Types::kDifferent}}};
  static const Rules iobes = {"IOBES",
                              "IOBES",
                              {{"IOBES", "BS", Types::kAny}},
                              {{"BI", "IE", Types::kSame}},
                              {{"SE", "IOBES", Types::kAny}}};
  static const Rules bilou = {"BILOU",
                              "BILOU",
                              {{"BILOU", "BU", Types::kAny}},
                              {{"BI", "IL", Types::kSame}},
                              {{"UL", "BILOU", Types::kAny}}};
  switch (scheme) {
    case TagScheme::kIob1:
      return iob1;
    case TagScheme::kIob2:
      return iob2;
    case TagScheme::kIobes:
      return iobes;
    default:
      return bilou;
  }
}

template <class Tag>
bool matches(const std::vector<Pattern>& patterns, const Tag& previous, const Tag& current) {
  return std::ranges::any_of(patterns, [&](const Pattern& p) {
    return any_of(previous.prefix, p.previous) && any_of(current.prefix, p.current) &&
           (p.types == Types::kAny || (p.types == Types::kSame) == (previous.type == current.type));
  });
}

// Behind the prefix, which is one character.
std::string_view without_prefix(std::string_view label) {
  size_t first = 0;
  next_code_point(label, first);
  return label.substr(first);
}

// What follows the first dash, or all of it.
std::string_view loose_type(std::string_view rest) {
  const size_t dash = rest.find('-');
  return dash == rest.npos ? rest : rest.substr(dash + 1);
}

// Without dashes around it.
std::string_view strict_type(std::string_view rest) {
  const size_t begin = rest.find_first_not_of('-');
  return begin == rest.npos ? "" : rest.substr(begin, rest.find_last_not_of('-') + 1 - begin);
}

std::string type_of(std::string_view label, TagScheme scheme) {
  const std::string_view rest = without_prefix(label);
  const std::string_view type = scheme == TagScheme::kConll ? loose_type(rest) : strict_type(rest);
  return type.empty() ? "_" : std::string(type);
}

void check_label(std::string_view label, TagScheme scheme) {
  if (label.empty()) fail(ErrorKind::kInput, "a tag is empty; expected O, B-TYPE, I-TYPE");
  if (scheme == TagScheme::kConll) return;
  const Rules& rules = rules_of(scheme);
  if (!any_of(label[0], rules.prefixes)) {
    fail(ErrorKind::kInput,
         "the tag \"{}\" is not of the scheme {}, whose tags begin with one of {}", label,
         rules.name, rules.prefixes);
  }
}

}  // namespace

TagScheme scheme_of(std::span<const std::string> labels) {
  const bool bilou = std::ranges::any_of(labels, [](const std::string& label) {
    return label.starts_with("L-") || label.starts_with("U-");
  });
  return bilou ? TagScheme::kBilou : TagScheme::kConll;
}

TagSet::TagSet(std::span<const std::string> labels, TagScheme scheme)
    : scheme_(scheme), types_{"_"} {
  for (const std::string& label : labels) {
    check_label(label, scheme);
    types_.push_back(type_of(label, scheme));
  }
  std::ranges::sort(types_);
  types_.erase(std::ranges::unique(types_).begin(), types_.end());
  const auto id_of = [this](const std::string& type) {
    return int32_t(std::ranges::lower_bound(types_, type) - types_.begin());
  };
  for (const std::string& label : labels) {
    tags_.push_back({label[0], id_of(type_of(label, scheme))});
  }
  outside_ = {'O', id_of("_")};
}

void TagSet::find_entities(std::span<const int32_t> tags, std::vector<Entity>& entities) const {
  entities.clear();
  scheme_ == TagScheme::kConll ? find_loosely(tags, entities) : find_strictly(tags, entities);
}

void TagSet::find_loosely(std::span<const int32_t> tags, std::vector<Entity>& entities) const {
  Tag previous = {'O', kNoType};
  size_t first = 0;
  for (size_t i = 0; i <= tags.size(); ++i) {
    const Tag tag = i < tags.size() ? tags_[size_t(tags[i])] : outside_;
    const bool type_changes = tag.type != previous.type;
    const bool ends = any_of(previous.prefix, "ES") ||
                      (any_of(previous.prefix, "BI") && any_of(tag.prefix, "BSO")) ||
                      (!any_of(previous.prefix, "O.") && type_changes);
    const bool starts = any_of(tag.prefix, "BS") ||
                        (any_of(previous.prefix, "ESO") && any_of(tag.prefix, "EI")) ||
                        (!any_of(tag.prefix, "O.") && type_changes);
    if (ends) entities.push_back({previous.type, first, i - 1});
    if (starts) first = i;
    previous = tag;
  }
}

void TagSet::find_strictly(std::span<const int32_t> tags, std::vector<Entity>& entities) const {
  const Rules& rules = rules_of(scheme_);
  const auto tag_at = [&](size_t i) { return i < tags.size() ? tags_[size_t(tags[i])] : outside_; };
  Tag previous = outside_;
  for (size_t i = 0; i < tags.size();) {
    const Tag tag = tag_at(i);
    size_t end = i + 1;
    if (matches(rules.start, previous, tag)) {
      while (matches(rules.inside, tag_at(end - 1), tag_at(end))) ++end;
      if (matches(rules.end, tag_at(end - 1), tag_at(end))) {
        entities.push_back({tag.type, i, end - 1});
      }
    }
    i = end;
    previous = tag_at(i - 1);
  }
}

}  // namespace snug
