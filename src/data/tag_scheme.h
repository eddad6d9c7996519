// Entities written as a tag a word: how the tags of a data set say where an entity begins and ends.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/row_reader.h"

namespace snug {

enum class TagScheme : uint8_t {
  kNone,   // classes of words, no entities: parts of speech, or numbers
  kIo,     // I-X in an entity; two neighbours of one type cannot be told apart
  kIob1,   // I-X in an entity, B-X only where one begins right behind another of its type
  kIob2,   // B-X begins every entity, I-X continues it (BIO)
  kBioes,  // B-X, I-X, E-X for the last word, S-X for a single one (IOBES)
  kBilou,  // B-X, I-X, L-X for the last word, U-X for a single one
};
std::string_view scheme_name(TagScheme scheme);  // "IOB2"

struct Tag {
  char prefix = 0;          // 'O' outside, one of "BIESLU" in an entity, 0: no tag of an entity
  std::string_view type{};  // behind the first '-'; "B" and "I" alone have none
};
Tag parse_tag(std::string_view tag);

// The scheme that a set of labels belongs to. B-X and I-X alone are IOB2: which of the two IOBs it was is known from
// sentences only.
TagScheme scheme_of(std::span<const std::string> labels);

// Finds the scheme of a file sentence by sentence, and what is wrong with its tags.
class TagSchemeFinder {
 public:
  explicit TagSchemeFinder(std::string file) : file_(std::move(file)) {}  // for messages

  // Refuses (kInput) tags that no scheme has: "B-" without a type.
  void add(std::span<const Word> words, uint64_t line);
  // Refuses sets that mix tags of entities with others ("B-LOC" and "X-LOC"), or two schemes (E-X and U-X). What breaks
  // both IOBs is IOB2 with some I-X that should be B-X: IOB1 has no B-X behind an O.
  TagScheme finish() const;
  // How many I-X stand where no entity of their type is going on. In all but IO and IOB1 these are mistakes.
  uint64_t stray_inside() const { return stray_inside_; }

 private:
  // Where a tag was first seen.
  struct Seen {
    std::string tag;
    uint64_t line = 0;
    size_t word = 0;
  };
  void see(std::optional<Seen>& where, std::string_view tag, uint64_t line, size_t word) const;
  std::string at(const Seen& seen) const;

  std::string file_;
  std::optional<Seen> entity_;  // the first B-X, I-X, ...
  std::optional<Seen> letter_;  // the first "B", "I", ... alone, which may be a class of another kind
  std::optional<Seen> other_;   // the first that is none of these
  std::optional<Seen> bioes_, bilou_;
  bool any_b_ = false, not_iob1_ = false;
  uint64_t stray_inside_ = 0;
};

// The labels of a sentence in IOB2. An I-X where no entity of its type is going on becomes B-X; all else stays, an "I" without
// a type too. That turns IO and IOB1 into IOB2 and leaves IOB2, BIOES, BILOU and what are no entities alone, so it needs no
// scheme.
class Iob2Labels {
 public:
  // [words]; views that live until the next call and as long as `words`.
  std::span<const std::string_view> of(std::span<const Word> words);

 private:
  std::vector<std::string_view> labels_;
  std::string changed_;
};

}  // namespace snug
